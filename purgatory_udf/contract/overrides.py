"""What-if settings: values that replace or scale recorded ones, and the requests that they apply to.

A setting is a whole number, or a factor such as `x0.5`. It applies to all requests (`produce.timeout_ms=500`) or, as a
*rule*, to those in its scope: `produce.timeout_ms[client_id=checkout-*,broker=2]=500`. The first matching rule wins,
and rules win over the setting without a scope.

This module parses settings, selects requests, and computes effective values. They are applied when a request becomes
an operation: by the reference in `rules.reference.event_handlers`, by the engine in `rules.engine.what_if_columns`, to
requests of groups in `rules.coordinator.group_requests`, and to share groups in `rules.reference.share_state`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

INT32_MAX = 2**31 - 1


def _override(value: Any) -> Any:
    """Validate a what-if value: a whole number, a factor of the recorded value such as `x0.5`, or None.

    Raises:
        ValueError: The value is none of these.
    """
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


def _rule_value(value: Any) -> Any:
    return value if value in ISOLATIONS else _override(value)


def _rule_range(value: int | str | None) -> int | str | None:
    return value if value in ISOLATIONS else _override_range(value)


# The value of a setting in a rule: as `Override`, or the name of an isolation.
RuleValue = Annotated[int | str | None, BeforeValidator(_rule_value), AfterValidator(_rule_range)]


def apply_override(recorded: int, setting: int | str | None) -> int:
    """Return the effective value: the recorded value, replaced or scaled by the setting if it is not None."""
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return setting
    return min(INT32_MAX, int(recorded * float(setting[1:])))


SCOPE_FIELDS = ("client_id", "topic", "group", "broker")
_SETTING = re.compile(r"([^\[=]+)(?:\[(.*)\])?=(.*)", re.DOTALL)


class ParsedSetting(NamedTuple):
    """The parts of a setting `key[scope]=value` of the command line; `scope` is None without brackets."""

    key: str
    scope: str | None
    value: str


def parse_setting(setting: str) -> ParsedSetting | None:
    """Return the parts of a setting; None if it has no `=`."""
    match = _SETTING.fullmatch(setting)
    return None if match is None else ParsedSetting(match[1].strip(), match[2], match[3])


def has_scope(setting: str) -> bool:
    """Return whether the setting is limited to some requests by `[...]`."""
    words = parse_setting(setting)
    return words is not None and words.scope is not None


def parse_scope(scope: str) -> dict[str, str | int]:
    """Return the fields of a scope such as `client_id=checkout-*,broker=2`; raise ValueError for anything else."""
    fields: dict[str, str | int] = {}
    for part in scope.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in SCOPE_FIELDS:
            raise ValueError(f"[{scope}]: expected client_id=…, topic=…, group=… or broker=…, separated by commas")
        fields[name] = int(value) if name == "broker" and value.isdigit() else value
    return fields


FETCH_KEYS = ("max_wait_ms", "min_bytes")
# Settings of a whole share group, at every broker.
SHARE_GROUP_KEYS = tuple(
    f"share.{key}" for key in ("record_lock_duration_ms", "delivery_count_limit", "partition_max_record_locks")
)
# The setting of a share group with values that are names.
ISOLATION_KEY, ISOLATIONS = "share.isolation", ("read_committed", "read_uncommitted")
# The keys that a rule may set; each replaces one field of a request.
WHAT_IF_KEYS = frozenset(
    {
        "produce.timeout_ms",
        "delete_records.timeout_ms",
        "create_topics.timeout_ms",
        "group.session_timeout_ms",
        "group.rebalance_timeout_ms",
        "group.consumer.session_timeout_ms",
        "share.max_wait_ms",
        "share.max_records",
        *SHARE_GROUP_KEYS,
        ISOLATION_KEY,
        *(f"fetch.{reader}{key}" for reader in ("", "consumer.", "follower.") for key in FETCH_KEYS),
    }
)


# Settings under the names of Kafka's clients and brokers.
_KAFKA_NAMES = {
    "fetch.min.bytes": "fetch.consumer.min_bytes",
    "fetch.max.wait.ms": "fetch.consumer.max_wait_ms",
    "replica.fetch.min.bytes": "fetch.follower.min_bytes",
    "replica.fetch.wait.max.ms": "fetch.follower.max_wait_ms",
    "request.timeout.ms": "produce.timeout_ms",
    "session.timeout.ms": "group.session_timeout_ms",
    "max.poll.interval.ms": "group.rebalance_timeout_ms",
    "share.record.lock.duration.ms": "share.record_lock_duration_ms",
    "share.delivery.count.limit": "share.delivery_count_limit",
    "share.partition.max.record.locks": "share.partition_max_record_locks",
    "share.auto.offset.reset": "share.auto_offset_reset",
    "share.isolation.level": "share.isolation",
    "share.max.share.sessions": "share.max_sessions",
    "errors.deadletterqueue.topic.name": "share.dead_letter_queue",
    "linger.ms": "producer.linger_ms",
    "batch.size": "producer.batch_size",
    "remote.fetch.max.wait.ms": "remote_fetch.max_wait_ms",
    "remote.list.offsets.request.timeout.ms": "list_offsets.request_timeout_ms",
    "group.initial.rebalance.delay.ms": "group.initial_rebalance_delay_ms",
    "group.consumer.session.timeout.ms": "group.consumer.session_timeout_ms",
    "group.consumer.assignment.interval.ms": "group.consumer.assignment_interval_ms",
}
_IN_SYNC_KEYS = ("min.insync.replicas", "min_insync_replicas", "min_isr")
# Kafka's setting, the key of a scenario, and likely spellings.
_READER_KEYS = ("remote.log.reader.threads", "remote_reader_threads", "remote_fetch.reader_threads")
READER_THREADS_HINT = (
    "a recorded trace does not contain when threads started their reads of remote storage, nor how long a read would "
    "have taken that got no thread before its fetch expired; to compare numbers of threads "
    "(remote.log.reader.threads), use `what-if --closed-loop cold-consumers --variant NAME "
    "brokers.remote_reader_threads=20`"
)


def key_hint(key: str) -> str | None:
    """Return a hint at the setting that a user may mean by an unknown key, for an error message; None without one."""
    if key in _IN_SYNC_KEYS or key.endswith(".min_isr"):
        return (
            "in-sync sets are as recorded, and so are the errors of produces that they refused; to compare values of "
            "min.insync.replicas, edit topics.min_isr of a scenario for `what-if --closed-loop SCENARIO`"
        )
    if key.endswith(_READER_KEYS):
        return READER_THREADS_HINT
    known = _KAFKA_NAMES.get(key.removeprefix("group.") if key.startswith("group.share.") else key)
    return None if known is None else f"the key of Kafka's {key} is {known}"


# Writes of coordinators are produces with a timeout from broker settings (`offsets.commit.timeout.ms`, the
# transaction timeout, and `request.timeout.ms` for transaction markers), so a producer's timeout does not apply to
# them.
COORDINATOR_KEY = "produce.timeout_ms"
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
MARKER_SENDERS = "broker-*-txn-marker-sender"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The properties of a request by which a rule selects it."""

    client_id: str | None
    broker: int | None
    topics: Sequence[str] = ()
    group: str | None = None

    @property
    def is_coordinator_write(self) -> bool:
        """Whether a produce with these properties is a write of a coordinator."""
        internal = bool(self.topics) and all(topic in INTERNAL_TOPICS for topic in self.topics)
        return internal or matches_pattern(MARKER_SENDERS, self.client_id)


def _flat(values: Any) -> Any:
    """Return settings, which may be in nested sections, as a mapping from dotted keys such as `produce.timeout_ms`.

    Raises:
        ValueError: The value is not a mapping, or a key is not a what-if key.
    """
    if not isinstance(values, Mapping):
        raise ValueError("expected a mapping of keys to values")
    flat = dict(_dotted(values))
    unknown = next((key for key in flat if key not in WHAT_IF_KEYS), None)
    if unknown is not None:
        raise ValueError(f"{unknown} is not a what-if key; use one of {', '.join(sorted(WHAT_IF_KEYS))}")
    return flat


def _dotted(values: Mapping[Any, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


class Scope(BaseModel):
    """The requests to which a rule applies. They match every field that is set.

    `client_id`, `topic` and `group` are patterns (`*`, `?`, `[ab]`). A request over several topics matches if one does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: str | None = None
    topic: str | None = None
    group: str | None = None
    broker: Annotated[int | None, Field(ge=0)] = None

    def matches(self, subject: RequestContext) -> bool:
        """Return whether the request is in this scope."""
        if self.broker is not None and self.broker != subject.broker:
            return False
        if self.client_id is not None and not matches_pattern(self.client_id, subject.client_id):
            return False
        if self.group is not None and not matches_pattern(self.group, subject.group):
            return False
        return self.topic is None or any(matches_pattern(self.topic, topic) for topic in subject.topics)


class ScopeRule(Scope):
    """A scope with its settings; the value null keeps the recorded value."""

    settings: Annotated[dict[str, RuleValue], BeforeValidator(_flat), Field(min_length=1)]

    @model_validator(mode="after")
    def _check_scope_fits_keys(self) -> ScopeRule:
        for key, value in self.settings.items():
            if value is not None and (key == ISOLATION_KEY) != (value in ISOLATIONS):
                expected = (
                    " or ".join(ISOLATIONS) if key == ISOLATION_KEY else "a whole number, or a factor such as x0.5"
                )
                raise ValueError(f"{key}: expected {expected}")
            if key in (*SHARE_GROUP_KEYS, ISOLATION_KEY) and (self.client_id, self.topic, self.broker) != (
                None,
                None,
                None,
            ):
                raise ValueError(f"{key} can be limited by group only, because it is a setting of the share group")
            if key.startswith("share."):
                continue
            is_group_key = key.startswith("group.")
            if is_group_key and self.topic is not None:
                raise ValueError(f"{key} cannot be limited by topic, because group requests name no topic")
            if not is_group_key and self.group is not None:
                raise ValueError(f"{key} cannot be limited by group, because only group requests name a group")
        return self


def matches_pattern(pattern: str, name: str | None) -> bool:
    """Return whether the name matches the pattern, or is equal to it."""
    return name is not None and (name == pattern or fnmatchcase(name, pattern))


def first_override(
    rules: Iterable[ScopeRule], key_names: Sequence[str], subject: RequestContext
) -> tuple[bool, int | str | None]:
    """Return whether a rule sets one of the keys for the request, and the value of the first that does.

    Args:
        rules: Rules in order of precedence.
        key_names: Keys that apply to the field of the request, most specific first.
        subject: Properties of the request.
    """
    for rule in rules:
        for key in key_names:
            if key in rule.settings and rule.matches(subject):
                return True, rule.settings[key]
    return False, None


def parse_rule(setting: str) -> dict[str, Any] | None:
    """Return the fields of the `ScopeRule` that a setting with a scope describes; None without a scope."""
    words = parse_setting(setting)
    if words is None or words.scope is None:
        return None
    return {**parse_scope(words.scope), "settings": {words.key: words.value or None}}
