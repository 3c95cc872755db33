"""What a what-if setting does to a recorded value: it replaces it, or scales it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

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


def apply_override(recorded: int, setting: int | str | None) -> int:
    """The value to replay with: the recorded one unless a what-if setting replaces or scales it."""
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return setting
    return min(INT32_MAX, int(recorded * float(setting[1:])))


# A setting as a command line says it: `key=value`, or for some only `key[client_id=checkout-*,broker=2]=value`.


SCOPE_FIELDS = ("client_id", "topic", "group", "broker")
_SETTING = re.compile(r"([^\[=]+)(?:\[(.*)\])?=(.*)", re.DOTALL)


class ParsedSetting(NamedTuple):
    """`scope` is what the brackets say, None without brackets."""

    key: str
    scope: str | None
    value: str


def parse_setting(setting: str) -> ParsedSetting | None:
    """None of what is no setting."""
    match = _SETTING.fullmatch(setting)
    return None if match is None else ParsedSetting(match[1].strip(), match[2], match[3])


def has_scope(setting: str) -> bool:
    words = parse_setting(setting)
    return words is not None and words.scope is not None


def parse_scope(scope: str) -> dict[str, str | int]:
    """What a scope names, by name; of a broker its number, where it is one."""
    fields: dict[str, str | int] = {}
    for part in scope.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in SCOPE_FIELDS:
            raise ValueError(f"[{scope}]: expected client_id=…, topic=…, group=… or broker=…, with commas between")
        fields[name] = int(value) if name == "broker" and value.isdigit() else value
    return fields


# A rule: settings for some requests only, told by client, topic, group or broker.


FETCH_KEYS = ("max_wait_ms", "min_bytes")
# Every key that a rule may set, each the value of one field of a request.
WHAT_IF_KEYS = frozenset(
    {
        "produce.timeout_ms",
        "delete_records.timeout_ms",
        "create_topics.timeout_ms",
        "group.session_timeout_ms",
        "group.rebalance_timeout_ms",
        *(f"fetch.{reader}{key}" for reader in ("", "consumer.", "follower.") for key in FETCH_KEYS),
    }
)


# What coordinators write waits as produces do, but for as long as a broker's own settings say: what becomes of a
# producer's time-out is none of its business (Kafka: `offsets.commit.timeout.ms`, the transaction's own, and
# `request.timeout.ms` for markers that end transactions).
COORDINATOR_KEY = "produce.timeout_ms"
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
MARKER_SENDERS = "broker-*-txn-marker-sender"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a rule is held against: whose request it is, and what it is about."""

    client_id: str | None
    broker: int | None
    topics: Sequence[str] = ()
    group: str | None = None

    @property
    def is_coordinators(self) -> bool:
        """Whether a coordinator wrote it, if it is a produce."""
        internal = bool(self.topics) and all(topic in INTERNAL_TOPICS for topic in self.topics)
        return internal or matches_pattern(MARKER_SENDERS, self.client_id)


def _flat(values: Any) -> Any:
    """Dotted keys and nested sections say the same thing."""
    if not isinstance(values, Mapping):
        raise ValueError("expected a mapping of keys")
    flat = dict(_dotted(values))
    strange = next((key for key in flat if key not in WHAT_IF_KEYS), None)
    if strange is not None:
        raise ValueError(f"{strange} is no what-if key (there are {', '.join(sorted(WHAT_IF_KEYS))})")
    return flat


def _dotted(values: Mapping[Any, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value


class Scope(BaseModel):
    """A request matches that agrees with everything the scope names: `client_id`, `topic` and `group` are patterns
    (`*`, `?`, `[ab]`), and of a request's topics one is enough."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: str | None = None
    topic: str | None = None
    group: str | None = None
    broker: Annotated[int | None, Field(ge=0)] = None

    def matches(self, subject: RequestContext) -> bool:
        if self.broker is not None and self.broker != subject.broker:
            return False
        if self.client_id is not None and not matches_pattern(self.client_id, subject.client_id):
            return False
        if self.group is not None and not matches_pattern(self.group, subject.group):
            return False
        return self.topic is None or any(matches_pattern(self.topic, topic) for topic in subject.topics)


class ScopeRule(Scope):
    """What such requests are to ask for. A null setting means: as recorded."""

    settings: Annotated[dict[str, Override], BeforeValidator(_flat), Field(min_length=1)]

    @model_validator(mode="after")
    def _names_what_the_requests_know(self) -> ScopeRule:
        for key in self.settings:
            of_groups = key.startswith("group.")
            if of_groups and self.topic is not None:
                raise ValueError(f"{key} cannot be told by topic: a group's requests name none")
            if not of_groups and self.group is not None:
                raise ValueError(f"{key} cannot be told by group: only a group's own requests name it")
        return self


def matches_pattern(pattern: str, name: str | None) -> bool:
    """A name fits itself, whatever is in it."""
    return name is not None and (name == pattern or fnmatchcase(name, pattern))


def first_override(
    rules: Iterable[ScopeRule], key_names: Sequence[str], subject: RequestContext
) -> tuple[bool, int | str | None]:
    """Whether a rule says any of these keys for the subject, and what the first such rule says."""
    for rule in rules:
        for key in key_names:
            if key in rule.settings and rule.matches(subject):
                return True, rule.settings[key]
    return False, None


def parse_rule(setting: str) -> dict[str, Any] | None:
    """The fields of the rule that a setting with a scope stands for; None of a setting without one."""
    words = parse_setting(setting)
    if words is None or words.scope is None:
        return None
    return {**parse_scope(words.scope), "settings": {words.key: words.value or None}}


# Rules applied to many requests at once.


Array = npt.NDArray[Any]


def apply_override_to_all(recorded: Array, setting: int | str | None) -> Array:
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return np.full(len(recorded), setting, dtype=np.int64)
    return np.minimum(INT32_MAX, recorded * float(setting[1:])).astype(np.int64)


class RequestColumns:
    """Requests as rules see them: columns of one type's events, and the topics that their items name."""

    def __init__(self, events: pa.Table, items: pa.Array, parents: Array) -> None:
        """`parents` has for each item the place of its request."""
        self._events, self._items, self._parents = events, items, parents

    def __len__(self) -> int:
        return len(self._events)

    def matching(self, rule: ScopeRule) -> Array:
        mask = np.ones(len(self), dtype=bool)
        if rule.broker is not None:
            mask &= pc.equal(pc.fill_null(self._events["broker"], 0), rule.broker).to_numpy(zero_copy_only=False)
        if rule.client_id is not None:
            mask &= _fitting(self._events["client_id"], rule.client_id)
        if rule.topic is not None:
            named = _fitting(pc.struct_field(self._items, "topic"), rule.topic)
            mask &= np.bincount(self._parents[named], minlength=len(self)).astype(bool)
        return mask

    def asked(self, recorded: Array, rules: Iterable[ScopeRule], keys: Sequence[str], plain: int | str | None) -> Array:
        """The recorded values as the settings want them: the first rule's that matches, else the plain setting's. Of a
        coordinator's own produce only a rule by topic changes the time-out."""
        coordinators = self._of_coordinators() if COORDINATOR_KEY in keys else np.zeros(len(self), dtype=bool)
        asked, open_still = (
            np.where(coordinators, recorded, apply_override_to_all(recorded, plain)),
            np.ones(len(self), dtype=bool),
        )
        for rule in rules:
            said = next((key for key in keys if key in rule.settings), None)
            if said is None:
                continue
            mine = open_still & self.matching(rule)
            if rule.topic is None:
                mine &= ~coordinators
            asked = np.where(mine, apply_override_to_all(recorded, rule.settings[said]), asked)
            open_still &= ~mine
        return asked

    def _of_coordinators(self) -> Array:
        """See `Subject.is_coordinators`."""
        internal = pc.is_in(pc.struct_field(self._items, "topic"), pa.array(INTERNAL_TOPICS))
        others = self._parents[~internal.to_numpy(zero_copy_only=False)]
        named = np.bincount(self._parents, minlength=len(self)) > 0
        written = named & (np.bincount(others, minlength=len(self)) == 0)
        return written | _fitting(self._events["client_id"], MARKER_SENDERS)


def _fitting(column: pa.Array | pa.ChunkedArray, pattern: str) -> Array:
    """Which texts fit; each is looked at once, however often it occurs."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    coded = column.dictionary_encode()
    fitting = np.array([*(matches_pattern(pattern, name) for name in coded.dictionary.to_pylist()), False])
    return fitting[pc.fill_null(coded.indices, len(fitting) - 1).to_numpy(zero_copy_only=False)]
