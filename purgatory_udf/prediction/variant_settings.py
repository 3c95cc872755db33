"""What a variant of a fitted cluster changes: `key=value`, `key=x2`, `key[client_id=checkout-*]=value`.

Scopes are those of a what-if over recorded arrivals: `client_id`, `topic` and `group` are patterns, `broker` is a
number, and everything that a scope names has to agree. Of settings with a scope the first that matches counts, before
one without; among those the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import RequestContext, Scope, parse_scope, parse_setting
from purgatory_udf.prediction.simulation_plan import (
    MAX_COPIES,
    ClusterPlan,
    ProducerPlan,
    PurgePlan,
    ReaderPlan,
    copy_producers,
    copy_readers,
)

P = TypeVar("P", PurgePlan, ReaderPlan, ProducerPlan)
MAX_VALUE = 2**31 - 1
_READER_FIELDS = ("min_bytes", "max_wait_ms")
_CONSUMERS = {f"fetch.{who}{name}": name for name in _READER_FIELDS for who in ("consumer.", "")}
_FOLLOWERS = {f"fetch.follower.{name}": name for name in _READER_FIELDS}
_PRODUCERS = {"producer.linger_ms": "linger_ms", "producer.batch_size": "batch_bytes", "producer.rate": "rate"}
_PURGES = {"fetch.purge_interval": "fetch", "produce.purge_interval": "produce"}
RATE, COUNT = "producer.rate", "count"
_COUNTS = {"consumer.count": COUNT, "producer.count": COUNT}
SETTING_KEYS = (*_CONSUMERS, *_FOLLOWERS, *_PRODUCERS, *_COUNTS, *_PURGES)
NO_SCOPE = Scope()


@dataclass(frozen=True)
class VariantSetting:
    """`value` replaces what there is, or multiplies it (`times`)."""

    key: str
    value: float
    times: bool = False
    scope: Scope = NO_SCOPE

    def of(self, before: float) -> float:
        return before * self.value if self.times else self.value

    @property
    def scoped(self) -> bool:
        return bool(self.scope.model_fields_set)


def parse_variant_setting(word: str) -> VariantSetting:
    words = parse_setting(word)
    if words is None:
        raise UserError(f"{word}: expected key=value")
    try:
        scope = parse_scope(words.scope) if words.scope else {}
    except ValueError as error:
        raise UserError(f"{words.key}{error}") from None
    return make_setting(words.key, words.value, scope)


def make_setting(key: str, text: str, scope: Mapping[str, Any]) -> VariantSetting:
    """Of a scope, no value means: as it was."""
    if key not in SETTING_KEYS:
        raise UserError(f"{key}: unknown key of a prediction (there are {', '.join(SETTING_KEYS)})")
    text = text.strip() or ("x1" if scope else "")
    times = text.startswith("x")
    try:
        value = float(text.removeprefix("x"))
    except ValueError:
        raise UserError(f"{key}: expected a number, or a factor such as x0.5 (got {text!r})") from None
    if not 0 <= value <= MAX_VALUE or (not times and key != RATE and value != int(value)):
        raise UserError(f"{key}: expected a whole number from 0 to {MAX_VALUE}, or a factor (got {text!r})")
    if value <= 0 and key == RATE:
        raise UserError(f"{key}: expected more than 0 (got {text!r})")
    if key in _COUNTS and not (value == int(value) and value <= MAX_COPIES):
        raise UserError(f"{key}: expected how many of each, from 0 to {MAX_COPIES} (got {text!r})")
    return VariantSetting(key, value, times, _scope(key, scope))


def _scope(key: str, fields: Mapping[str, Any]) -> Scope:
    if not fields:
        return NO_SCOPE
    try:
        scope = Scope.model_validate(fields)
    except ValidationError as error:
        said = ",".join(f"{name}={value}" for name, value in fields.items())
        raise UserError(f"{key}[{said}]: {error.errors()[0]['msg']}") from None
    if key in _PURGES and scope.model_fields_set != {"broker"}:
        raise UserError(f"{_spelled(key, scope)}: a purge interval is a broker's")
    if key.startswith("producer.") and scope.model_fields_set & {"broker", "group"}:
        raise UserError(f"{_spelled(key, scope)}: a producer is told by client_id, or by topic")
    return scope


def _spelled(key: str, scope: Scope) -> str:
    said = ",".join(f"{name}={asked}" for name, asked in scope.model_dump(exclude_unset=True).items())
    return f"{key}[{said}]" if said else key


class _Settings:
    """Of one kind of subject. Each setting has to be about somebody."""

    def __init__(
        self, settings: Iterable[VariantSetting], fields: Mapping[str, str], those: Sequence[RequestContext]
    ) -> None:
        self._mine = [asked for asked in settings if asked.key in fields]
        self._fields = fields
        for asked in self._mine:
            if not any(map(asked.scope.matches, those)):
                raise UserError(f"{_spelled(asked.key, asked.scope)}: there is nobody in the scenario that it is about")

    def of(self, subject: RequestContext) -> dict[str, VariantSetting]:
        """By field, the one that counts: of consumers, what says so before what does not."""
        unscoped = sorted(
            (asked for asked in self._mine if not asked.scoped), key=lambda asked: "consumer." in asked.key
        )
        plain = {self._fields[asked.key]: asked for asked in unscoped}
        rules = [asked for asked in self._mine if asked.scoped and asked.scope.matches(subject)]
        return plain | {self._fields[rule.key]: rule for rule in reversed(rules)}


def apply_settings(plan: ClusterPlan, settings: Iterable[VariantSetting], groups: Mapping[str, str]) -> ClusterPlan:
    """The plan under these settings; `groups` are those that consumers are in."""
    every = list(settings)
    return replace(
        plan,
        purges=_purges(plan, every),
        readers=_readers(plan, every, groups),
        producers=_producers(plan, every),
    )


def _with(subject: P, asked: Mapping[str, VariantSetting]) -> P:
    fields: dict[str, Any] = {name: int(wanted.of(getattr(subject, name))) for name, wanted in asked.items()}
    return replace(subject, **fields)


def _purges(plan: ClusterPlan, settings: Sequence[VariantSetting]) -> dict[int, PurgePlan]:
    subjects = {
        number: RequestContext(None, number) for number in sorted({partition.leader for partition in plan.partitions})
    }
    asked = _Settings(settings, _PURGES, list(subjects.values()))
    purges = {
        number: _with(plan.purges.get(number, PurgePlan()), asked.of(subject)) for number, subject in subjects.items()
    }
    return {number: purge for number, purge in purges.items() if number in plan.purges or purge != PurgePlan()}


def _readers(plan: ClusterPlan, settings: Sequence[VariantSetting], groups: Mapping[str, str]) -> list[ReaderPlan]:
    def subject(reader: ReaderPlan) -> RequestContext:
        topics = sorted({plan.partitions[key].topic for key in reader.keys})
        return RequestContext(reader.client, reader.broker, topics, groups.get(reader.client))

    def of(fields: Mapping[str, str], is_meant: Callable[[ReaderPlan], bool]) -> _Settings:
        return _Settings(settings, fields, [subject(reader) for reader in plan.readers if is_meant(reader)])

    followers = of(_FOLLOWERS, lambda reader: reader.replica >= 0)
    consumers = of(_CONSUMERS, lambda reader: reader.replica < 0)
    counts = of({"consumer.count": COUNT}, lambda reader: reader.replica < 0)
    made: list[ReaderPlan] = []
    for reader in plan.readers:
        if reader.replica >= 0:
            made.append(_with(reader, followers.of(subject(reader))))
        else:
            adjusted = _with(reader, consumers.of(subject(reader)))
            made += copy_readers(adjusted, _count(counts.of(subject(reader))))
    return made


def _producers(plan: ClusterPlan, settings: Sequence[VariantSetting]) -> list[ProducerPlan]:
    subjects = [
        RequestContext(producer.client, None, sorted({plan.partitions[key].topic for key in set(producer.keys)}))
        for producer in plan.producers
    ]
    asked = _Settings(settings, _PRODUCERS, subjects)
    counts = _Settings(settings, {"producer.count": COUNT}, subjects)
    made: list[ProducerPlan] = []
    for producer, subject in zip(plan.producers, subjects, strict=True):
        wanted = asked.of(subject)
        rate = wanted.pop("rate", None)
        adjusted = _with(producer, wanted)
        made += copy_producers(adjusted if rate is None else _at_rate(adjusted, rate), _count(counts.of(subject)))
    return made


def _count(asked: Mapping[str, VariantSetting]) -> int:
    return int(asked[COUNT].value) if COUNT in asked else 1


def _at_rate(producer: ProducerPlan, rate: VariantSetting) -> ProducerPlan:
    recorded = len(producer.gaps_ms) / sum(producer.gaps_ms) * 1000 if len(producer.gaps_ms) else 1.0
    speed = rate.of(producer.speed * recorded) / recorded
    return replace(producer, speed=speed, begin_ms=producer.begin_ms * producer.speed / speed)
