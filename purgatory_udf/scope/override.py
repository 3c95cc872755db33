"""What a what-if setting does to a recorded value: it replaces it, or scales it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

INT32_MAX = 2**31 - 1


def _override(value: Any) -> Any:
    """A what-if value is a fixed number, or a factor of the recorded one written `x0.5`."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str):
        text = value.strip()
        try:
            if text.startswith("x"):
                float(text[1:])
                return text
            return int(text)
        except ValueError:
            pass
    raise ValueError("expected a whole number, or a factor such as x0.5")


def _override_range(value: int | str | None) -> int | str | None:
    if isinstance(value, int) and not 0 <= value <= INT32_MAX:
        raise ValueError(f"expected 0 to {INT32_MAX}")
    if isinstance(value, str) and not 0 <= float(value[1:]) <= 1e6:
        raise ValueError("expected a factor from x0 to x1000000")
    return value


Override = Annotated[int | str | None, BeforeValidator(_override), AfterValidator(_override_range)]


def override(recorded: int, setting: int | str | None) -> int:
    """The value to replay with: the recorded one unless a what-if setting replaces or scales it."""
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return setting
    return min(INT32_MAX, int(recorded * float(setting[1:])))
