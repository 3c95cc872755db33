"""A rule: settings for some requests only, told by client, topic, group or broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from purgatory_udf.scope.override import Override
from purgatory_udf.scope.words import fields_of, words_of

FETCH_KEYS = ("max_wait_ms", "min_bytes")
# Every key that a rule may set, each the value of one field of a request.
KEYS = frozenset(
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
COORDINATED = "produce.timeout_ms"
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")
MARKER_SENDERS = "broker-*-txn-marker-sender"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a rule is held against: whose request it is, and what it is about."""

    client_id: str | None
    broker: int | None
    topics: Sequence[str] = ()
    group: str | None = None

    @property
    def is_coordinators(self) -> bool:
        """Whether a coordinator wrote it, if it is a produce."""
        internal = bool(self.topics) and all(topic in INTERNAL_TOPICS for topic in self.topics)
        return internal or fits(MARKER_SENDERS, self.client_id)


def _flat(values: Any) -> Any:
    """Dotted keys and nested sections say the same thing."""
    if not isinstance(values, Mapping):
        raise ValueError("expected a mapping of keys")
    flat = dict(_dotted(values))
    strange = next((key for key in flat if key not in KEYS), None)
    if strange is not None:
        raise ValueError(f"{strange} is no what-if key (there are {', '.join(sorted(KEYS))})")
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

    def matches(self, subject: Subject) -> bool:
        if self.broker is not None and self.broker != subject.broker:
            return False
        if self.client_id is not None and not fits(self.client_id, subject.client_id):
            return False
        if self.group is not None and not fits(self.group, subject.group):
            return False
        return self.topic is None or any(fits(self.topic, topic) for topic in subject.topics)


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


def fits(pattern: str, name: str | None) -> bool:
    """A name fits itself, whatever is in it."""
    return name is not None and (name == pattern or fnmatchcase(name, pattern))


def first_of(rules: Iterable[ScopeRule], key_names: Sequence[str], subject: Subject) -> tuple[bool, int | str | None]:
    """Whether a rule says any of these keys for the subject, and what the first such rule says."""
    for rule in rules:
        for key in key_names:
            if key in rule.settings and rule.matches(subject):
                return True, rule.settings[key]
    return False, None


def scoped(setting: str) -> dict[str, Any] | None:
    """The fields of the rule that a setting with a scope stands for; None of a setting without one."""
    words = words_of(setting)
    if words is None or words.scope is None:
        return None
    return {**fields_of(words.scope), "settings": {words.key: words.value or None}}
