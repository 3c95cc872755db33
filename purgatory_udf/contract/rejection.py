"""Why an input line is not an event."""

from __future__ import annotations

import json
from typing import Any

SHOWN = 80


class Rejection(Exception):  # noqa: N818 (a verdict about the input, not a fault of the program)
    """`rule` is one of a few fixed words, to count by; `reason` is the sentence: field, value, what was expected."""

    def __init__(self, rule: str, actual: str, expected: str = "") -> None:
        super().__init__(rule, actual, expected)
        self.rule = rule
        self.actual = actual
        self.expected = expected
        self.path = ""

    def within(self, segment: str) -> Rejection:
        """The same verdict seen from the object or list around the value: `topic` becomes `[1].topic`, and so on."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        self.path = segment + dot + self.path
        return self

    @property
    def reason(self) -> str:
        return ": ".join(part for part in (self.path, self.actual, self.expected) if part)


def unfit(value: Any, expected: str) -> Rejection:
    """The value is of the wrong type for its field."""
    return Rejection("wrong type", shown(value), f"expected {expected}")


def impossible(value: Any, expected: str) -> Rejection:
    """The value is of the right type, but no broker can have had it."""
    return Rejection("impossible value", shown(value), f"expected {expected}")


def shown(value: Any) -> str:
    """The value as JSON, cut to a length that a sentence can hold."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
