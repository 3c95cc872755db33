"""Incomplete or unusual recordings: each is fitted as far as possible, and reports missing parts."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.prediction_commands import check_by_simulation, write_scenario
from purgatory_udf.prediction.recording import NO_CLIENT_ID, build_recording
from purgatory_udf.prediction.simulation_plan import build_plan, require_fitted
from purgatory_udf.prediction.variant_settings import apply_settings, parse_variant_setting
from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.scenario import Consumers, Scenario, load_scenario, read_scenario
from tests.prediction.simulated import recorded_of, replayed_of

pytestmark = pytest.mark.long


@cache
def _replayed() -> dict[str, pa.Table]:
    """Return a recording with two producers and two consumers that are present from the beginning."""
    assign = {"payments": [0, 1, 2]}
    steady = load_scenario("steady")
    small = {
        "duration_s": 11.0,
        "producers": [producer.model_copy(update={"count": 1}) for producer in steady.producers],
        "consumers": [Consumers(name=name, assign=assign, commit="never") for name in ("audit", "ledger")],
    }
    return replayed_of(ClosedLoop(steady.model_copy(update=small)).run())


def _events() -> pa.Table:
    return _replayed()["events"]


def _fitted(events: pa.Table) -> Scenario:
    return fit(build_recording(events, recorded_of(_replayed())))


def _is(kind: str, followers: bool | None = None) -> Any:
    mask = pc.equal(_events()["type"], kind)
    if followers is None:
        return mask
    replica = pc.fill_null(_events()["replica_id"], -1)
    return pc.and_(mask, pc.greater_equal(replica, 0) if followers else pc.less(replica, 0))


def _renamed(names: dict[str, str | None]) -> pa.Table:
    place = _events().schema.get_field_index("client_id")
    clients = [names.get(name, name) for name in _events()["client_id"].to_pylist()]
    return _events().set_column(place, "client_id", pa.array(clients, pa.string()))


def _numbered_from_0(events: pa.Table) -> pa.Table:
    """Return the events with broker IDs that start at 0, as is usual with ZooKeeper."""

    def lower(numbers: list[int] | None) -> list[int] | None:
        return None if numbers is None else [number - 1 for number in numbers]

    for name in ("broker", "replica_id"):
        place = events.schema.get_field_index(name)
        lowered = pc.if_else(pc.greater(events[name], 0), pc.subtract(events[name], 1), events[name])
        events = events.set_column(place, events.schema.field(place), pc.cast(lowered, events.schema.field(place).type))
    for name in ("replicas", "isr"):
        place = events.schema.get_field_index(name)
        field = events.schema.field(place)
        events = events.set_column(place, field, pa.array(map(lower, events[name].to_pylist()), field.type))
    return events


def test_recording_without_consumers() -> None:
    scenario = _fitted(_events().filter(pc.invert(_is("fetch", followers=False))))
    assert (scenario.consumers, len(scenario.producers)) == ([], 2)
    with pytest.raises(UserError, match=r"fetch\.consumer\.min_bytes: applies to no client or broker"):
        apply_settings(build_plan(scenario), [parse_variant_setting("fetch.consumer.min_bytes=9")], {})


def test_recording_without_followers() -> None:
    """A follower without fetches is out of sync, so produces do not wait for it."""
    scenario = _fitted(_events().filter(pc.invert(_is("fetch", followers=True))))
    assert {len(partition.replicas) for partition in require_fitted(scenario).partitions} == {1}
    assert all(figures["PRODUCE"]["waited"] == 0 for figures in _simulated(scenario, "checkout"))


def test_recording_without_log_of_one_broker() -> None:
    scenario = _fitted(_events().filter(pc.or_(pc.not_equal(_events()["broker"], 2), _is("partition"))))
    assert "broker 2: no requests in the recording; the partitions that it leads are not simulated" in (
        require_fitted(scenario).unknown
    )
    assert {broker for reader in require_fitted(scenario).readers.values() for broker in reader.reads} == {1, 3}


def test_broker_ids_from_zero() -> None:
    scenario = _fitted(_numbered_from_0(_events()))
    assert scenario.brokers.count == 3
    assert {partition.replicas[0] for partition in require_fitted(scenario).partitions} == {0, 1, 2}
    assert check_by_simulation(scenario, 1).reasons() == []


def test_leader_is_assumed_from_requests() -> None:
    scenario = _fitted(_events().filter(pc.invert(_is("partition"))))
    whole = _fitted(_events())
    assert {
        (partition.topic, partition.partition): partition.replicas for partition in require_fitted(scenario).partitions
    } == {(partition.topic, partition.partition): partition.replicas for partition in require_fitted(whole).partitions}
    assert check_by_simulation(scenario, 1).reasons() == []


def test_empty_events_are_rejected() -> None:
    with pytest.raises(UserError, match="the table events is empty"):
        _fitted(_events().slice(0, 0))


def test_client_names_may_be_unusual_or_missing(tmp_path: Path) -> None:
    """One client also produces and consumes under the same name."""
    unusual = 'a,b]="c": #- *\n'
    scenario = _fitted(_renamed({"checkout-1": None, "till-1": unusual, "audit-1": unusual, "ledger-1": ""}))
    assert {producer.name for producer in scenario.producers} == {unusual, NO_CLIENT_ID}
    assert {consumer.name for consumer in scenario.consumers} == {unusual, NO_CLIENT_ID}
    write_scenario(scenario, tmp_path / "odd.yaml")
    assert read_scenario(tmp_path / "odd.yaml") == scenario


def test_consumer_named_follower_is_not_trusted() -> None:
    scenario = _fitted(_renamed({"audit-1": "follower"}))
    assert "cannot be distinguished from the followers" in require_fitted(scenario).doubts["follower"]


def test_consumer_reading_from_follower_is_not_trusted() -> None:
    """Its fetches at broker 1 are moved to brokers that do not lead the partition."""
    events = _events()
    selected = pc.and_(pc.equal(events["client_id"], "audit-1"), _is("fetch"))
    place = events.schema.get_field_index("broker")
    moved = pc.if_else(pc.fill_null(selected, False), pc.add(pc.bit_wise_and(events["broker"], 1), 1), events["broker"])
    scenario = _fitted(events.set_column(place, events.schema.field(place), pc.cast(moved, pa.int32())))
    assert "it reads from followers" in require_fitted(scenario).doubts["audit-1"]


def test_longest_period_between_leader_moves_is_fitted() -> None:
    events = _events()
    leaders = events.filter(pc.and_(_is("partition"), pc.equal(events["change"], "leader")))
    began, ended = (bound.as_py() for bound in pc.min_max(events["time_us"]).values())
    moved = leaders.slice(0, 1).to_pylist()[0]
    others = [number for number in (1, 2, 3) if number != moved["broker"]]
    moved |= {"time_us": began + 3_000_000, "broker": others[0], "seq": ended}
    scenario = _fitted(pa.concat_tables([events, pa.Table.from_pylist([moved], schema=events.schema)]))
    assert require_fitted(scenario).begin_s == pytest.approx(5.0, abs=0.01)
    assert "leaders moved at 3.0 s; fitted to the longest period between the moves" in require_fitted(scenario).unknown


def _simulated(scenario: Scenario, of: str) -> list[dict[str, dict[str, float]]]:
    return [figures for who, figures in check_by_simulation(scenario, 1).simulated.items() if who.startswith(of)]
