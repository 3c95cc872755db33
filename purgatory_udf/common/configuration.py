"""The configuration: every key, its range and default, read from YAML and `--set key=value`, checked on load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import COORDINATOR_KEY, RequestContext, ScopeRule, first_override, parse_rule
from purgatory_udf.contract.overrides import INT32_MAX as INT32_MAX
from purgatory_udf.contract.overrides import Override as Override

# A file of settings: YAML, a mapping of keys.


# libyaml's, wherever PyYAML was built with it: a fitted scenario has tens of thousands of numbers.
_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_mapping(path: Path, may_be_empty: bool = False) -> dict[Any, Any]:
    """A mistake names the file."""
    try:
        values = _loaded(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if values is None and may_be_empty:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of keys, got {type(values).__name__}")
    return values


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, _QUICK)
    except yaml.YAMLError:
        # PyYAML's own says more exactly where the mistake is.
        return yaml.safe_load(text)


Millis = Annotated[int, Field(ge=0, le=INT32_MAX)]
Interval = Annotated[int, Field(ge=0, le=INT32_MAX)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProduceSettings(_Section):
    timeout_ms: Override = None
    purge_interval: Interval = 1000


class ReaderSettings(_Section):
    max_wait_ms: Override = None
    min_bytes: Override = None


class FetchSettings(_Section):
    """The plain keys are the consumers': followers have settings of their own in Kafka, too."""

    max_wait_ms: Override = None
    min_bytes: Override = None
    consumer: ReaderSettings = ReaderSettings()
    follower: ReaderSettings = ReaderSettings()
    max_bytes: Annotated[int, Field(ge=1, le=INT32_MAX)] = 57_671_680
    purge_interval: Interval = 1000


class DeleteRecords(_Section):
    timeout_ms: Override = None
    purge_interval: Interval = 1


class CreateTopicsSettings(_Section):
    timeout_ms: Override = None
    purge_interval: Interval = 1000


class GroupSettings(_Section):
    session_timeout_ms: Override = None
    rebalance_timeout_ms: Override = None
    initial_rebalance_delay_ms: Millis = 3000
    min_session_timeout_ms: Millis = 6000
    max_session_timeout_ms: Millis = 1_800_000
    new_member_timeout_ms: Millis = 300_000
    max_size: Annotated[int, Field(ge=1, le=INT32_MAX)] = INT32_MAX
    rebalance_timeout: Literal["rebalance", "session"] = "rebalance"
    purge_interval: Interval = 1000
    # A coordinator is handed this section alone: the rules are the whole configuration's.
    _rules: tuple[ScopeRule, ...] = PrivateAttr(())

    def setting(self, key: str, subject: RequestContext) -> int | str | None:
        """What replaces or scales this field of a group's request."""
        said, value = first_override(self._rules, (f"group.{key}",), subject)
        plain: int | str | None = getattr(self, key)
        return value if said else plain


class Config(_Section):
    produce: ProduceSettings = ProduceSettings()
    fetch: FetchSettings = FetchSettings()
    delete_records: DeleteRecords = DeleteRecords()
    create_topics: CreateTopicsSettings = CreateTopicsSettings()
    group: GroupSettings = GroupSettings()
    what_if: tuple[ScopeRule, ...] = ()
    grouping: Literal["auto", "partition", "shard", "broker"] = "auto"
    grouping_shards: Annotated[int, Field(ge=1, le=4096)] = 16
    max_disorder_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 0
    max_rejected: Annotated[float, Field(ge=0, le=100)] = 0.0
    max_line_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 16 << 20
    max_unpacked: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    drain: bool = True
    batch_events: Annotated[int, Field(ge=1, le=1_000_000_000)] = 500_000

    @model_validator(mode="after")
    def _groups_know_the_rules(self) -> Config:
        if self.what_if:
            group = self.group.model_copy()
            group._rules = self.what_if
            self.__dict__["group"] = group  # Frozen for everybody but its maker; a default is shared, hence the copy.
        return self

    def plain(self, keys: tuple[str, ...]) -> int | str | None:
        """What the first of these keys that is set says without a scope."""
        for key in keys:
            value: Any = self
            for part in key.split("."):
                value = getattr(value, part)
            if value is not None:
                return value
        return None

    def setting(self, keys: tuple[str, ...], subject: RequestContext) -> int | str | None:
        """What replaces or scales a field of this request: the first rule's that matches it, else the plain key's. Of a
        coordinator's own produce only a rule by topic changes the time-out."""
        if COORDINATOR_KEY in keys and subject.is_coordinators:
            return first_override((rule for rule in self.what_if if rule.topic is not None), keys, subject)[1]
        said, value = first_override(self.what_if, keys, subject)
        return value if said else self.plain(keys)


def fetch_keys(field: str, follower: bool) -> tuple[str, ...]:
    """The keys that are about this field of a follower's or a consumer's fetch, the one that counts first."""
    return (f"fetch.follower.{field}",) if follower else (f"fetch.consumer.{field}", f"fetch.{field}")


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


def load_config(file: str | Path | None = None, settings: list[str] | None = None) -> Config:
    """Defaults, then the YAML file, then each `key=value`; a mistake names the file or option, key and value.

    `key[client_id=…]=value` is a rule: those of the settings in their order, then those of the file.
    """
    values: dict[str, Any] = {}
    if file is not None:
        path = Path(file)
        _nest(read_mapping(path, may_be_empty=True), values, str(path))
        _validated(values, str(path))
    rules: list[dict[str, Any]] = []
    for setting in settings or []:
        try:
            rule = parse_rule(setting)
        except ValueError as error:
            raise UserError(f"--set {setting}: {error}") from None
        if rule is not None:
            _validated({"what_if": [rule]}, f"--set {setting}")
            rules.append(rule)
            continue
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise UserError(f"--set {setting}: expected key=value")
        try:
            value = yaml.safe_load(text) if text else None
        except yaml.YAMLError:
            value = text
        _nest({key.strip(): value}, values, f"--set {setting}")
        _validated(values, f"--set {setting}")
    if rules:
        values["what_if"] = [*rules, *(values.get("what_if") or [])]
    return _validated(values, "configuration")
