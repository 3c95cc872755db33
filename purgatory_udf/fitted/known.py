"""What of a scenario's settings a fitted one knows: whatever else is asked for would change nothing, and is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import BaseModel

from purgatory_udf.errors import UserError
from purgatory_udf.simulate.fitted import Fitted
from purgatory_udf.simulate.scenario import Scenario

_BROKERS = ("count", "replica_fetch_wait_max_ms", "replica_fetch_min_bytes")
_PRODUCERS = (
    *("name", "count", "topics", "rate", "record_bytes", "linger_ms", "batch_bytes", "acks", "request_timeout_ms"),
    "max_in_flight",
)
_CONSUMERS = (
    *("name", "count", "group", "assign", "fetch_min_bytes", "fetch_max_wait_ms", "fetch_max_bytes"),
    "max_partition_fetch_bytes",
)
# Both are about clients and brokers that are made up.
_SECTIONS = ("topic_creations", "incidents")


def require_known(scenario: Scenario, fitted: Fitted) -> None:
    for section in _SECTIONS:
        if getattr(scenario, section):
            raise UserError(f"{section}: a fitted scenario knows none")
    _only("brokers", scenario.brokers, _BROKERS)
    for made in scenario.producers:
        _only(f"producers: {made.name}", made, _PRODUCERS)
        _was_there("producers", made.name, fitted.producers)
        topics = {fitted.partitions[place].topic for place in fitted.producers[made.name].partitions}
        if not topics <= set(made.topics):
            raise UserError(
                f"producers: {made.name}: topics: its records go to {', '.join(sorted(topics))}, as recorded"
            )
    consumers = [name for name, reader in fitted.readers.items() if reader.replica < 0]
    for asked in scenario.consumers:
        _only(f"consumers: {asked.name}", asked, _CONSUMERS)
        _was_there("consumers", asked.name, consumers)


def _only(place: str, given: BaseModel, known: Sequence[str]) -> None:
    strange = next((name for name in sorted(given.model_fields_set) if name not in known), None)
    if strange is not None:
        raise UserError(f"{place}: {strange}: a fitted scenario knows no such setting (it knows {', '.join(known)})")


def _was_there(section: str, name: str, those: Iterable[str]) -> None:
    if name not in those:
        raise UserError(
            f"{section}: {name}: nothing was fitted to it (there are {', '.join(those) or 'none'}; more of one: count)"
        )
