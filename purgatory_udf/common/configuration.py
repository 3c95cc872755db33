"""The configuration: every key with its range and default, read from a YAML file and `--set key=value`.

`conf/local.yaml` documents the keys.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import open_file
from purgatory_udf.contract.overrides import (
    COORDINATOR_KEY,
    RequestContext,
    ScopeRule,
    apply_override,
    first_override,
    key_hint,
    matches_pattern,
    parse_rule,
)
from purgatory_udf.contract.overrides import INT32_MAX as INT32_MAX
from purgatory_udf.contract.overrides import Override as Override

# Maximum number of values in a file with aliases; a large scenario has tens of thousands.
_MAX_VALUES = 1_000_000
# Invalid values are shortened in messages.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 200, 200, 60


def read_mapping(path: Path, may_be_empty: bool = False) -> dict[Any, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        UserError: The file cannot be read, is not YAML, or is not a mapping.
    """
    # Most commands read no YAML, and its import takes a hundredth of the time of a short one.
    import yaml

    try:
        with open_file(path) as file:
            text = file.read().decode()
        values = _parse(text)
        # Only aliases can make few lines many values.
        if "*" in text and _size(values, {}) > _MAX_VALUES:
            raise UserError(f"{path}: its aliases expand to more than {_MAX_VALUES:,} values")
    except RecursionError:
        raise UserError(f"{path}: nested too deeply, or an alias contains itself") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if values is None and may_be_empty:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, got {type(values).__name__}")
    return values


def _size(value: Any, sizes: dict[int, int]) -> int:
    """Return the number of values that a YAML value contains, itself included. An alias counts each time it is used.

    So a small file with nested aliases is recognised as large. `sizes` caches the results by the identity of values.
    """
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in sizes:
        inner = value.values() if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_size(each, sizes) for each in inner)
    return sizes[id(value)]


def _parse(text: str) -> Any:
    import yaml

    try:
        # The parser of libyaml, if available: a fitted scenario has tens of thousands of numbers.
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        # The parser in Python reports the position of an error more precisely.
        return yaml.safe_load(text)


Millis = Annotated[int, Field(ge=0, le=INT32_MAX)]
Interval = Annotated[int, Field(ge=0, le=INT32_MAX)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProduceSettings(_Section):
    """Settings of produce requests and their purgatory."""

    timeout_ms: Override = None
    purge_interval: Interval = 1000


class ReaderSettings(_Section):
    """Settings of the fetches of consumers, or of followers."""

    max_wait_ms: Override = None
    min_bytes: Override = None


class FetchSettings(_Section):
    """Settings of fetch requests and their purgatory.

    Keys without `consumer` or `follower` apply to consumers, because Kafka configures followers separately.
    `cap_min_bytes` is false for traces in which `min_bytes` is not the value in the request, but already the capped
    value for which the broker waits.
    """

    max_wait_ms: Override = None
    min_bytes: Override = None
    consumer: ReaderSettings = ReaderSettings()
    follower: ReaderSettings = ReaderSettings()
    max_bytes: Annotated[int, Field(ge=1, le=INT32_MAX)] = 57_671_680
    cap_min_bytes: bool = True
    purge_interval: Interval = 1000


# The default of `remote.fetch.max.wait.ms`, which a factor such as x2 scales.
REMOTE_FETCH_MAX_WAIT_MS = 500


class RemoteFetchSettings(_Section):
    """Settings of fetches that wait for reads of remote storage, and of their purgatory.

    `max_wait_ms` is `remote.fetch.max.wait.ms`; null for Kafka up to 3.7, where such a fetch waits for its own maximum.
    `reads` is `first` for Kafka up to 4.1, which reads only the first remote partition of a fetch.
    """

    max_wait_ms: Override = REMOTE_FETCH_MAX_WAIT_MS
    reads: Literal["all", "first"] = "all"
    purge_interval: Interval = 0

    @property
    def broker_wait_ms(self) -> int | None:
        """The maximum wait that the broker sets; None if it is that of each fetch."""
        return None if self.max_wait_ms is None else apply_override(REMOTE_FETCH_MAX_WAIT_MS, self.max_wait_ms)


class ListOffsetsSettings(_Section):
    """Settings of list-offsets requests and their purgatory.

    `request_timeout_ms` is `remote.list.offsets.request.timeout.ms`, which applies to requests without a timeout.
    """

    request_timeout_ms: Millis = 30_000
    purge_interval: Interval = 1000


class DeleteRecords(_Section):
    """Settings of delete-records requests and their purgatory."""

    timeout_ms: Override = None
    purge_interval: Interval = 1


class CreateTopicsSettings(_Section):
    """Settings of create-topics requests and their purgatory."""

    timeout_ms: Override = None
    purge_interval: Interval = 1000


class ConsumerGroupSettings(_Section):
    """Settings of groups of the consumer protocol (Kafka's `group.consumer.*`).

    `default_session_timeout_ms` is `group.consumer.session.timeout.ms` of the brokers, for groups without a recorded
    session timeout; `session_timeout_ms` replaces or scales the session timeout of every group.
    """

    default_session_timeout_ms: Millis = 45_000
    session_timeout_ms: Override = None
    assignment_interval_ms: Millis = 1000
    max_size: Annotated[int, Field(ge=1, le=INT32_MAX)] = INT32_MAX


class GroupSettings(_Section):
    """Settings of the group coordinator and its purgatories."""

    session_timeout_ms: Override = None
    rebalance_timeout_ms: Override = None
    initial_rebalance_delay_ms: Millis = 3000
    min_session_timeout_ms: Millis = 6000
    max_session_timeout_ms: Millis = 1_800_000
    new_member_timeout_ms: Millis = 300_000
    max_size: Annotated[int, Field(ge=1, le=INT32_MAX)] = INT32_MAX
    coordinator: Literal["old", "new"] | None = None
    consumer: ConsumerGroupSettings = ConsumerGroupSettings()
    commit_delay_ms: Millis = 0
    rebalance_timeout: Literal["rebalance", "session"] = "rebalance"
    purge_interval: Interval = 1000
    # A copy of `Config.what_if`, because a coordinator is given this section only.
    _rules: tuple[ScopeRule, ...] = PrivateAttr(())

    @property
    def keeps_member_timeouts(self) -> bool:
        """Whether no setting changes the timeouts of members of classic groups."""
        rules = (self.__pydantic_private__ or {}).get("_rules", ())
        return self.session_timeout_ms is None and self.rebalance_timeout_ms is None and not rules

    def setting(self, key: str, subject: RequestContext) -> int | str | None:
        """Return the what-if value of the field `key` for a request: of the first matching rule, else the plain one."""
        section, _, field = key.rpartition(".")
        plain: int | str | None = getattr(getattr(self, section) if section else self, field)
        # Reading `self._rules` takes 2 µs, and each join needs two settings.
        rules = (self.__pydantic_private__ or {}).get("_rules", ())
        found, value = first_override(rules, (f"group.{key}",), subject) if rules else (False, None)
        return value if found else plain


def _version(value: Any) -> Any:
    """Return a version as text; YAML reads 4.3 as a number."""
    return str(value) if isinstance(value, float) else value


class ShareSettings(_Section):
    """Settings of share groups, their fetches and their purgatory.

    The settings of groups replace or scale the reported values, or Kafka's defaults if none are reported. `reads` is
    `batches` for traces in which a read returns complete batches, at least one of each partition. Kafka cuts a read at
    its limit, and only the first partition returns at least one batch. With `max_sessions`, share sessions and their
    epochs are checked; otherwise the replay rejects a request only if the trace has its error.
    """

    max_wait_ms: Override = None
    max_records: Override = None
    record_lock_duration_ms: Override = None
    delivery_count_limit: Override = None
    partition_max_record_locks: Override = None
    auto_offset_reset: Literal["earliest", "latest"] | None = None
    isolation: Literal["read_committed", "read_uncommitted"] | None = None
    dead_letter_queue: bool | None = None
    dead_letter_write_ms: Millis | None = None
    max_sessions: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    version: Annotated[Literal["4.1", "4.2", "4.3", "4.4"], BeforeValidator(_version)] = "4.3"
    reads: Literal["bytes", "batches"] = "bytes"
    state_write_ms: Millis = 5
    purge_interval: Interval = 1000
    # A copy of `Config.what_if`, as for groups.
    _rules: tuple[ScopeRule, ...] = PrivateAttr(())

    @property
    def limits_failing_deliveries(self) -> bool:
        """Whether deliveries that failed are repeated in parts, and `max_records` may be exact (Kafka 4.2)."""
        return self.version != "4.1"

    @property
    def checks_only_with_data(self) -> bool:
        """Whether a share fetch only checks others of the partitions from which it read data (Kafka 4.4)."""
        return self.version == "4.4"

    @property
    def has_dead_letters(self) -> bool:
        """Whether share groups may have a dead-letter queue (Kafka 4.4)."""
        return self.version == "4.4"

    def overrides(self, group: str) -> bool:
        """Return whether a setting, or a rule that may apply to the group, replaces or scales a reported value."""
        limits = self.record_lock_duration_ms, self.delivery_count_limit, self.partition_max_record_locks
        others = self.max_wait_ms, self.max_records, self.isolation, self.dead_letter_queue, self.max_sessions
        if any(value is not None for value in (*limits, *others)):
            return True
        rules = (rule for rule in self._rules if rule.group is None or matches_pattern(rule.group, group))
        return any(key.startswith("share.") for rule in rules for key in rule.settings)

    def of_group(self, field: str, group: str) -> int | str | None:
        """Return the what-if value of a group's setting: of the first matching rule, else the plain one."""
        found, value = first_override(self._rules, (f"share.{field}",), RequestContext(None, None, group=group))
        plain: int | str | None = getattr(self, field)
        return value if found else plain


class Config(_Section):
    """The whole configuration; `load_config` creates it."""

    produce: ProduceSettings = ProduceSettings()
    fetch: FetchSettings = FetchSettings()
    remote_fetch: RemoteFetchSettings = RemoteFetchSettings()
    list_offsets: ListOffsetsSettings = ListOffsetsSettings()
    delete_records: DeleteRecords = DeleteRecords()
    create_topics: CreateTopicsSettings = CreateTopicsSettings()
    group: GroupSettings = GroupSettings()
    share: ShareSettings = ShareSettings()
    what_if: tuple[ScopeRule, ...] = ()
    grouping: Literal["auto", "partition", "shard", "broker"] = "auto"
    grouping_shards: Annotated[int, Field(ge=1, le=4096)] = 16
    max_disorder_ms: Annotated[int, Field(ge=0, le=86_400_000)] = 0
    max_rejected: Annotated[float, Field(ge=0, le=100)] = 0.0
    max_line_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 16 << 20
    max_unpacked: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    drain: bool = True
    write_watches: bool = True
    batch_events: Annotated[int, Field(ge=1, le=1_000_000_000)] = 500_000

    @model_validator(mode="after")
    def _pass_rules_to_group_sections(self) -> Config:
        if self.what_if:
            group, share = self.group.model_copy(), self.share.model_copy()
            group._rules = share._rules = self.what_if
            # The model is frozen, and the default sections are shared: replace them by copies.
            self.__dict__.update(group=group, share=share)
        return self

    def plain(self, keys: tuple[str, ...]) -> int | str | None:
        """Return the value of the first of these keys that is set without a scope, or None."""
        for key in keys:
            value: Any = self
            for part in key.split("."):
                value = getattr(value, part)
            if value is not None:
                return value
        return None

    def setting(self, keys: tuple[str, ...], subject: RequestContext) -> int | str | None:
        """Return the what-if value of a field for a request: of the first matching rule, else of the first set key.

        The timeout of a coordinator's write changes only by a rule that names a topic.
        """
        if COORDINATOR_KEY in keys and subject.is_coordinator_write:
            return first_override((rule for rule in self.what_if if rule.topic is not None), keys, subject)[1]
        found, value = first_override(self.what_if, keys, subject)
        return value if found else self.plain(keys)


def fetch_keys(field: str, follower: bool) -> tuple[str, ...]:
    """Return the keys that apply to this field of a follower's or a consumer's fetch, most specific first."""
    return (f"fetch.follower.{field}",) if follower else (f"fetch.consumer.{field}", f"fetch.{field}")


def _nest(flat: dict[str, Any], into: dict[str, Any], origin: str) -> dict[str, Any]:
    """Insert keys into the nested sections of `into`. Keys may be dotted or nested.

    `origin` is the file or option that the keys come from, for error messages.

    Raises:
        UserError: A key is not text, or is both a section and a value.
    """
    for key, value in flat.items():
        if not isinstance(key, str):
            raise UserError(f"{origin}: key {key!r} is not text; put it in quotes or remove it")
        *path, last = key.split(".")
        target = into
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise UserError(
                    f"{origin}: {key}: {part} already has a value, so it cannot be a section; remove one of the two"
                )
        if isinstance(value, dict):
            section = target.setdefault(last, {})
            if not isinstance(section, dict):
                raise UserError(f"{origin}: {key}: {last} is a value, not a section; set one of the two")
            _nest(value, section, origin)
        else:
            target[last] = value
    return into


def _all_keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all settings."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _all_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _similar_key(key: str) -> str:
    """Return a question for the known key that is most like an unknown one, or an empty text."""
    similar = difflib.get_close_matches(key, _all_keys(), n=1, cutoff=0.75)
    return f"did you mean {similar[0]}? " if similar else ""


def _validated(values: dict[str, Any], origin: str) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        given = first.get("input")
        if first["type"] == "extra_forbidden":
            while isinstance(given, dict) and len(given) == 1:
                ((part, given),) = given.items()
                key = f"{key}.{part}"
            hint = key_hint(key) or f"{_similar_key(key)}conf/local.yaml lists all keys"
            raise UserError(f"{origin}: {key}: unknown key; {hint}") from None
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{origin}: {key}: {message} (got {_SHORT.repr(given)})") from None


def _setting_value(text: str) -> Any:
    """Return the value that a text has in YAML; the text itself if it is not YAML."""
    import yaml

    try:
        return yaml.safe_load(text) if text else None
    except yaml.YAMLError:
        return text


def load_config(file: str | Path | None = None, settings: list[str] | None = None) -> Config:
    """Load the configuration: defaults, overridden by the YAML file, then by each `key=value` of `settings`.

    `key[client_id=…]=value` is a what-if rule; rules of `settings` come before those of the file.

    Raises:
        UserError: A key is unknown or a value invalid; the message names the file or option, the key and the value.
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
        _nest({key.strip(): _setting_value(text)}, values, f"--set {setting}")
        _validated(values, f"--set {setting}")
    if rules:
        values["what_if"] = [*rules, *(values.get("what_if") or [])]
    return _validated(values, "configuration")
