"""The settings of a variant of a fitted cluster: `key=value`, `key=x2`, `key[client_id=checkout-*]=value`.

Scopes are those of what-if rules (`contract.overrides`). The first matching setting with a scope takes precedence over
settings without a scope; among the latter, the last one takes precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import RequestContext, Scope, key_hint, parse_scope, parse_setting
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
_CONSUMERS = {f"fetch.{reader_prefix}{name}": name for name in _READER_FIELDS for reader_prefix in ("consumer.", "")}
_FOLLOWERS = {f"fetch.follower.{name}": name for name in _READER_FIELDS}
_PRODUCERS = {"producer.linger_ms": "linger_ms", "producer.batch_size": "batch_bytes", "producer.rate": "rate"}
_PURGES = {"fetch.purge_interval": "fetch", "produce.purge_interval": "produce"}
RATE, COUNT = "producer.rate", "count"
_COUNTS = {"consumer.count": COUNT, "producer.count": COUNT}
SETTING_KEYS = (*_CONSUMERS, *_FOLLOWERS, *_PRODUCERS, *_COUNTS, *_PURGES)
NO_SCOPE = Scope()


@dataclass(frozen=True)
class VariantSetting:
    """A value that replaces the current value or, if `times`, multiplies it."""

    key: str
    value: float
    times: bool = False
    scope: Scope = NO_SCOPE

    def apply(self, before: float) -> float:
        """Return the new value, given the value `before`."""
        return before * self.value if self.times else self.value

    @property
    def has_scope(self) -> bool:
        """Whether the setting is limited to some clients or brokers."""
        return bool(self.scope.model_fields_set)


def parse_variant_setting(word: str) -> VariantSetting:
    """Parse a setting such as `producer.rate[client_id=p-a]=x2`. Raises UserError if it is invalid."""
    words = parse_setting(word)
    if words is None:
        raise UserError(f"{word}: expected key=value")
    try:
        scope = parse_scope(words.scope) if words.scope else {}
    except ValueError as error:
        raise UserError(f"{words.key}{error}") from None
    return make_setting(words.key, words.value, scope)


def make_setting(key: str, text: str, scope: Mapping[str, Any]) -> VariantSetting:
    """Create a setting; an empty value with a scope keeps the current value.

    Raises:
        UserError: The key, the value or the scope is invalid.
    """
    if key not in SETTING_KEYS:
        hint = key_hint(key)
        more = f"; {hint}" if hint else ""
        raise UserError(f"{key}: unknown key; predictions support {', '.join(SETTING_KEYS)}{more}")
    text = text.strip() or ("x1" if scope else "")
    times = text.startswith("x")
    try:
        value = float(text.removeprefix("x"))
    except ValueError:
        raise UserError(f"{key}: expected a number, or a factor such as x0.5 (got {text!r})") from None
    if not 0 <= value <= MAX_VALUE or (not times and key != RATE and value != int(value)):
        raise UserError(f"{key}: expected a whole number from 0 to {MAX_VALUE}, or a factor (got {text!r})")
    if value <= 0 and key == RATE:
        raise UserError(f"{key}: expected a number or a factor greater than 0 (got {text!r})")
    if key in _COUNTS and not (value == int(value) and value <= MAX_COPIES):
        raise UserError(f"{key}: expected a number of copies from 0 to {MAX_COPIES} (got {text!r})")
    return VariantSetting(key, value, times, _scope(key, scope))


def _scope(key: str, fields: Mapping[str, Any]) -> Scope:
    if not fields:
        return NO_SCOPE
    try:
        scope = Scope.model_validate(fields)
    except ValidationError as error:
        scope_text = ",".join(f"{name}={value}" for name, value in fields.items())
        raise UserError(f"{key}[{scope_text}]: {error.errors()[0]['msg']}") from None
    if key in _PURGES and scope.model_fields_set != {"broker"}:
        raise UserError(f"{_setting_name(key, scope)}: a purge interval can be limited by broker only")
    if key.startswith("producer.") and scope.model_fields_set & {"broker", "group"}:
        raise UserError(f"{_setting_name(key, scope)}: producer settings can be limited by client_id or topic only")
    return scope


def _setting_name(key: str, scope: Scope) -> str:
    fields = ",".join(f"{name}={value}" for name, value in scope.model_dump(exclude_unset=True).items())
    return f"{key}[{fields}]" if fields else key


class _Settings:
    """The settings of a variant that apply to one kind of client or broker.

    Args:
        settings: All settings of the variant; those of other keys than `fields` are ignored.
        fields: The changed field of a plan by the setting's key.
        candidates: The clients or brokers of this kind.

    Raises:
        UserError: A setting applies to none of the candidates.
    """

    def __init__(
        self, settings: Iterable[VariantSetting], fields: Mapping[str, str], candidates: Sequence[RequestContext]
    ) -> None:
        self._settings = [setting for setting in settings if setting.key in fields]
        self._fields = fields
        for setting in self._settings:
            if not any(map(setting.scope.matches, candidates)):
                raise UserError(
                    f"{_setting_name(setting.key, setting.scope)}: applies to no client or broker of the scenario"
                )

    def of(self, subject: RequestContext) -> dict[str, VariantSetting]:
        """Return by field the setting that applies to a client or broker.

        Settings of `fetch.consumer.*` take precedence over those of `fetch.*`.
        """
        unscoped = sorted(
            (setting for setting in self._settings if not setting.has_scope),
            key=lambda setting: "consumer." in setting.key,
        )
        plain = {self._fields[setting.key]: setting for setting in unscoped}
        rules = [setting for setting in self._settings if setting.has_scope and setting.scope.matches(subject)]
        return plain | {self._fields[rule.key]: rule for rule in reversed(rules)}


def apply_settings(plan: ClusterPlan, settings: Iterable[VariantSetting], groups: Mapping[str, str]) -> ClusterPlan:
    """Return the plan with a variant's settings applied; `groups` has the consumer group of each consumer."""
    every = list(settings)
    return replace(
        plan,
        purges=_purges(plan, every),
        readers=_readers(plan, every, groups),
        producers=_producers(plan, every),
    )


def _with(subject: P, by_field: Mapping[str, VariantSetting]) -> P:
    fields: dict[str, Any] = {name: int(setting.apply(getattr(subject, name))) for name, setting in by_field.items()}
    return replace(subject, **fields)


def _purges(plan: ClusterPlan, settings: Sequence[VariantSetting]) -> dict[int, PurgePlan]:
    subjects = {
        number: RequestContext(None, number) for number in sorted({partition.leader for partition in plan.partitions})
    }
    chosen = _Settings(settings, _PURGES, list(subjects.values()))
    purges = {
        number: _with(plan.purges.get(number, PurgePlan()), chosen.of(subject)) for number, subject in subjects.items()
    }
    return {number: purge for number, purge in purges.items() if number in plan.purges or purge != PurgePlan()}


def _readers(plan: ClusterPlan, settings: Sequence[VariantSetting], groups: Mapping[str, str]) -> list[ReaderPlan]:
    def subject(reader: ReaderPlan) -> RequestContext:
        topics = sorted({plan.partitions[key].topic for key in reader.keys})
        return RequestContext(reader.client, reader.broker, topics, groups.get(reader.client))

    def of(fields: Mapping[str, str], is_affected: Callable[[ReaderPlan], bool]) -> _Settings:
        return _Settings(settings, fields, [subject(reader) for reader in plan.readers if is_affected(reader)])

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
    chosen = _Settings(settings, _PRODUCERS, subjects)
    counts = _Settings(settings, {"producer.count": COUNT}, subjects)
    made: list[ProducerPlan] = []
    for producer, subject in zip(plan.producers, subjects, strict=True):
        wanted = chosen.of(subject)
        rate = wanted.pop("rate", None)
        adjusted = _with(producer, wanted)
        made += copy_producers(adjusted if rate is None else _at_rate(adjusted, rate), _count(counts.of(subject)))
    return made


def _count(by_field: Mapping[str, VariantSetting]) -> int:
    return int(by_field[COUNT].value) if COUNT in by_field else 1


def _at_rate(producer: ProducerPlan, rate: VariantSetting) -> ProducerPlan:
    recorded = len(producer.gaps_ms) / sum(producer.gaps_ms) * 1000 if len(producer.gaps_ms) else 1.0
    speed = rate.apply(producer.speed * recorded) / recorded
    return replace(producer, speed=speed, begin_ms=producer.begin_ms * producer.speed / speed)
