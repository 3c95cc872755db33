"""The configuration: every key, its range and default, read from YAML and `--set key=value`, checked on load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from purgatory_udf.errors import UserError

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
Millis = Annotated[int, Field(ge=0, le=INT32_MAX)]
Interval = Annotated[int, Field(ge=0, le=INT32_MAX)]


def override(recorded: int, setting: int | str | None) -> int:
    """The value to replay with: the recorded one unless a what-if setting replaces or scales it."""
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return setting
    return min(INT32_MAX, int(recorded * float(setting[1:])))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Produce(_Section):
    timeout_ms: Override = None
    purge_interval: Interval = 1000


class Fetch(_Section):
    max_wait_ms: Override = None
    min_bytes: Override = None
    max_bytes: Annotated[int, Field(ge=1, le=INT32_MAX)] = 57_671_680
    purge_interval: Interval = 1000


class DeleteRecords(_Section):
    timeout_ms: Override = None
    purge_interval: Interval = 1


class CreateTopics(_Section):
    timeout_ms: Override = None
    purge_interval: Interval = 1000


class Group(_Section):
    session_timeout_ms: Override = None
    rebalance_timeout_ms: Override = None
    initial_rebalance_delay_ms: Millis = 3000
    min_session_timeout_ms: Millis = 6000
    max_session_timeout_ms: Millis = 1_800_000
    new_member_timeout_ms: Millis = 300_000
    max_size: Annotated[int, Field(ge=1, le=INT32_MAX)] = INT32_MAX
    rebalance_timeout: Literal["rebalance", "session"] = "rebalance"
    purge_interval: Interval = 1000


class Config(_Section):
    produce: Produce = Produce()
    fetch: Fetch = Fetch()
    delete_records: DeleteRecords = DeleteRecords()
    create_topics: CreateTopics = CreateTopics()
    group: Group = Group()
    grouping: Literal["partition", "shard"] = "partition"
    grouping_shards: Annotated[int, Field(ge=1, le=4096)] = 16
    settle_buckets: Annotated[int, Field(ge=1, le=4096)] = 4
    max_disorder_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 0
    max_rejected: Annotated[float, Field(ge=0, le=100)] = 0.0
    drain: bool = True
    batch_events: Annotated[int, Field(ge=1, le=1_000_000_000)] = 250_000


def _nest(flat: dict[str, Any], into: dict[str, Any], origin: str) -> dict[str, Any]:
    """Dotted keys and nested sections say the same thing; both are accepted."""
    for key, value in flat.items():
        if not isinstance(key, str):
            raise UserError(f"{origin}: key {key!r} is not a name")
        *path, last = key.split(".")
        target = into
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise UserError(f"{origin}: {key}: {part} is not a section")
        if isinstance(value, dict):
            section = target.setdefault(last, {})
            if not isinstance(section, dict):
                raise UserError(f"{origin}: {key}: {last} is not a section")
            _nest(value, section, origin)
        else:
            target[last] = value
    return into


def _validated(values: dict[str, Any], origin: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UserError(f"{origin}: {key}: unknown key") from None
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{origin}: {key}: {message} (got {first.get('input')!r})") from None


def load(file: str | Path | None = None, settings: list[str] | None = None) -> Config:
    """Defaults, then the YAML file, then each `key=value`; a mistake names the file or option, key and value."""
    values: dict[str, Any] = {}
    if file is not None:
        path = Path(file)
        try:
            read = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        if read is not None and not isinstance(read, dict):
            raise UserError(f"{path}: expected a mapping of keys, got {type(read).__name__}")
        _nest(read or {}, values, str(path))
        _validated(values, str(path))
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UserError(f"--set {setting}: expected key=value")
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError:
            value = text
        _nest({key.strip(): value}, values, f"--set {setting}")
        _validated(values, f"--set {setting}")
    return _validated(values, "configuration")
