"""What a variant of a fitted cluster changes: `key=value`, `key=x2`, `key[client_id=checkout-*]=value`.

Scopes are those of a what-if over recorded arrivals: `client_id`, `topic` and `group` are patterns, `broker` is a
number, and everything that a scope names has to agree. Later settings win over earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.plan import ClusterPlan, ProducerPlan, PurgePlan, ReaderPlan
from purgatory_udf.scope.rule import Scope, Subject
from purgatory_udf.scope.words import fields_of, words_of

T = TypeVar("T")
P = TypeVar("P", PurgePlan, ReaderPlan, ProducerPlan)
EVERYBODY = Scope()
MOST = 2**31 - 1
_READER_FIELDS = {"min_bytes": "min_bytes", "max_wait_ms": "max_wait_ms"}
_PRODUCER_FIELDS = {"producer.linger_ms": "linger_ms", "producer.batch_size": "batch_bytes"}
_PURGES = {"fetch.purge_interval": "fetch", "produce.purge_interval": "produce"}
RATE, CONSUMERS, PRODUCERS = "producer.rate", "consumer.count", "producer.count"
_READERS = {
    f"fetch.{who}{name}": (name, follower)
    for name in _READER_FIELDS
    for who, follower in (("consumer.", False), ("", False), ("follower.", True))
}
KEYS = (*_READERS, *_PRODUCER_FIELDS, RATE, CONSUMERS, PRODUCERS, *_PURGES)


@dataclass(frozen=True)
class Setting:
    """`value` replaces what there is, or multiplies it (`times`)."""

    key: str
    value: float
    times: bool = False
    scope: Scope = EVERYBODY

    def of(self, before: float) -> float:
        return before * self.value if self.times else self.value


def setting(word: str) -> Setting:
    words = words_of(word)
    if words is None:
        raise UserError(f"{word}: expected key=value")
    key, text = words.key, words.value.strip()
    if key not in KEYS:
        raise UserError(f"{key}: unknown key of a prediction (there are {', '.join(KEYS)})")
    times = text.startswith("x")
    try:
        value = float(text.removeprefix("x"))
    except ValueError:
        raise UserError(f"{key}: expected a number, or a factor such as x0.5 (got {text!r})") from None
    if not 0 <= value <= MOST or (not times and key != RATE and value != int(value)):
        raise UserError(f"{key}: expected a whole number from 0 to {MOST}, or a factor (got {text!r})")
    if value <= 0 and (key == RATE or key.endswith(".count")):
        raise UserError(f"{key}: expected more than 0 (got {text!r})")
    return Setting(key, value, times, _scope(key, words.scope))


def _scope(key: str, text: str | None) -> Scope:
    if not text:
        return EVERYBODY
    try:
        scope = Scope.model_validate(fields_of(text))
    except ValidationError as error:
        raise UserError(f"{key}[{text}]: {error.errors()[0]['msg']}") from None
    except ValueError as error:
        raise UserError(f"{key}{error}") from None
    if key in _PURGES and scope.model_fields_set != {"broker"}:
        raise UserError(f"{key}[{text}]: a purge interval is a broker's")
    return scope


def changed(plan: ClusterPlan, settings: Iterable[Setting], groups: Mapping[str, str]) -> ClusterPlan:
    """The plan under these settings; `groups` are those that consumers are in. Each has to change something."""
    for one in settings:
        if one.key in _PURGES:
            after = _with_purges(plan, one)
        elif one.key in _READERS:
            after = _with_readers(plan, one, groups)
        elif one.key == CONSUMERS:
            after = _with_more_consumers(plan, one, groups)
        else:
            after = _with_producers(plan, one)
        plan = after
    return plan


def _with(subject: P, name: str, one: Setting) -> P:
    fields: dict[str, Any] = {name: int(one.of(getattr(subject, name)))}
    return replace(subject, **fields)


def _with_purges(plan: ClusterPlan, one: Setting) -> ClusterPlan:
    brokers = sorted({partition.leader for partition in plan.partitions})
    of_whom = _meant(brokers, lambda number: one.scope.matches(Subject(None, number)), one)
    changed = {
        number: _with(plan.purges.get(number, PurgePlan()), _PURGES[one.key], one)
        for number, chosen in zip(brokers, of_whom, strict=True)
        if chosen
    }
    return replace(plan, purges={**plan.purges, **changed})


def _with_readers(plan: ClusterPlan, one: Setting, groups: Mapping[str, str]) -> ClusterPlan:
    name, follower = _READERS[one.key]
    of_whom = _meant(plan.readers, lambda it: (it.replica >= 0) == follower and _reads(plan, it, one, groups), one)
    changed = [
        _with(reader, name, one) if chosen else reader for reader, chosen in zip(plan.readers, of_whom, strict=True)
    ]
    return replace(plan, readers=changed)


def _reads(plan: ClusterPlan, reader: ReaderPlan, one: Setting, groups: Mapping[str, str]) -> bool:
    topics = sorted({plan.partitions[key].topic for key in reader.keys})
    return one.scope.matches(Subject(reader.client, reader.broker, topics, groups.get(reader.client)))


def _with_producers(plan: ClusterPlan, one: Setting) -> ClusterPlan:
    of_whom = _meant(plan.producers, lambda it: _writes(plan, it, one), one)
    made: list[ProducerPlan] = []
    for producer, chosen in zip(plan.producers, of_whom, strict=True):
        if not chosen:
            made.append(producer)
        elif one.key == PRODUCERS:
            made += _copies(producer, max(1, round(one.of(1))))
        elif one.key == RATE:
            recorded = len(producer.gaps_ms) / sum(producer.gaps_ms) * 1000 if len(producer.gaps_ms) else 1.0
            speed = one.of(producer.speed * recorded) / recorded
            made.append(replace(producer, speed=speed, begin_ms=producer.begin_ms * producer.speed / speed))
        else:
            made.append(_with(producer, _PRODUCER_FIELDS[one.key], one))
    return replace(plan, producers=made)


def _writes(plan: ClusterPlan, producer: ProducerPlan, one: Setting) -> bool:
    topics = sorted({plan.partitions[key].topic for key in set(producer.keys)})
    return one.scope.matches(Subject(producer.client, None, topics))


def _copies(producer: ProducerPlan, count: int) -> list[ProducerPlan]:
    """Each begins elsewhere in the circle of the records, so that they do not walk in step."""
    length = len(producer.gaps_ms)
    more = [
        replace(
            producer,
            client=f"{producer.client}#{number + 1}",
            begin_at=(producer.begin_at + number * length // count) % max(1, length),
        )
        for number in range(1, count)
    ]
    return [producer, *more]


def _with_more_consumers(plan: ClusterPlan, one: Setting, groups: Mapping[str, str]) -> ClusterPlan:
    """More of the same: each copy reads what the consumer reads, as one of a group of its own."""
    of_whom = _meant(plan.readers, lambda it: it.replica < 0 and _reads(plan, it, one, groups), one)
    readers: list[ReaderPlan] = []
    for reader, chosen in zip(plan.readers, of_whom, strict=True):
        readers.append(reader)
        for number in range(1, max(1, round(one.of(1))) if chosen else 1):
            readers.append(replace(reader, client=f"{reader.client}#{number + 1}"))
    return replace(plan, readers=readers)


def _meant(those: Sequence[T], chosen: Callable[[T], bool], one: Setting) -> list[bool]:
    found = [chosen(each) for each in those]
    if not any(found):
        scope = ",".join(f"{name}={asked}" for name, asked in one.scope.model_dump(exclude_unset=True).items())
        raise UserError(f"{one.key}{f'[{scope}]' if scope else ''}: there is nobody in the scenario that it is about")
    return found
