"""The gauges of the purgatories Heartbeat and Rebalance, batch by batch, equal the reference's."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Gauge
from purgatory_udf.rules.engine.loop.codes import PURGATORIES, Code
from purgatory_udf.rules.engine.loop.engine_state import pause_records
from purgatory_udf.rules.groups.group_gauges import CoordinatorPurgatory
from purgatory_udf.rules.groups.group_rows import FOREVER
from purgatory_udf.rules.groups.group_waits import by_purgatory
from purgatory_udf.rules.purgatory.clock import Pauses, gauge_changes
from purgatory_udf.rules.reference.reference_replay import replay
from tests.rules.groups.batches import Batches
from tests.support import oracle_groups
from tests.support.examples import examples
from tests.support.group_strategies import Event, GroupTraffic, group_traffic


class Coordinators:
    """The purgatories of a cluster, as bytes between two batches."""

    def __init__(self, config: Config, first_ms: int, pauses: Pauses) -> None:
        self.gauges: list[Gauge] = []
        self._pauses = pause_records(pauses)
        self._interval, self._first_ms = config.group.purge_interval, first_ms
        self._states: dict[tuple[int, Code], bytes] = {}

    def advance(self, calls: list[bytes], horizon_ms: int) -> None:
        by_owner = by_purgatory(calls)
        for owner in dict.fromkeys([*self._states, *by_owner]):
            broker, code = owner
            if owner in self._states:
                purgatory = CoordinatorPurgatory.from_bytes(self._states[owner])
            else:
                purgatory = CoordinatorPurgatory(code, self._interval, self._first_ms, broker)
            rows = purgatory.advance(by_owner.get(owner), horizon_ms, self._pauses)
            self._states[owner] = purgatory.to_bytes()
            columns = (rows.columns[name].tolist() for name in ("at_ms", "watched", "delayed", "purged"))
            self.gauges += [Gauge(broker, PURGATORIES[code], *row) for row in zip(*columns, strict=True)]

    @property
    def open(self) -> int:
        return sum(CoordinatorPurgatory.from_bytes(value).open for value in self._states.values())


def read(events: list[Event], config: Config, cuts: list[int], first_ms: int) -> Coordinators:
    pauses = Pauses.from_events(events)
    coordinators, batches = Coordinators(config, first_ms, pauses), Batches(config, pauses=pauses)
    bounds = sorted({0, len(events), *(cut for cut in cuts if cut < len(events))})
    for begin, end in pairwise(bounds):
        batches.take(events[begin:end])
        coordinators.advance(batches.waits, events[end - 1]["time_us"] // 1000)
        batches.waits.clear()
    batches.drain()
    coordinators.advance(batches.waits, FOREVER)
    assert coordinators.open == 0
    return coordinators


def differences(events: list[Event], config: Config, cuts: list[int]) -> tuple[list[Gauge], list[Gauge]]:
    """Return the gauges that only the batches have, and the ones that only the reference has."""
    expected = replay(events, config)
    actual = [gauge for gauge in read(events, config, cuts, expected.start_ms).gauges if gauge.at_ms <= expected.end_ms]
    wanted = gauge_changes(expected.gauges)
    return [gauge for gauge in actual if gauge not in wanted], [gauge for gauge in wanted if gauge not in actual]


def without_zero_delays(traffic: GroupTraffic) -> GroupTraffic:
    """Replace zero session timeouts and initial delays.

    The lag of the wheels decides when such timers run within their millisecond, and so affects a purge at that time.
    """
    events = [
        event | {"session_timeout_ms": max(2, event["session_timeout_ms"])} if "session_timeout_ms" in event else event
        for event in traffic.events
    ]
    group = traffic.config.group
    delay = {"initial_rebalance_delay_ms": max(1, group.initial_rebalance_delay_ms)}
    return GroupTraffic(traffic.config.model_copy(update={"group": group.model_copy(update=delay)}), events)


@settings(examples(12), phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(group_traffic().map(without_zero_delays), st.lists(st.integers(1, 80), max_size=4))
def test_gauges_of_random_traffic_match_reference(traffic: GroupTraffic, cuts: list[int]) -> None:
    assert differences(traffic.events, traffic.config, cuts) == ([], [])


@pytest.mark.parametrize("purge_interval", [0, 20, 1000])
@pytest.mark.parametrize("name", ["tiny-3"])
def test_gauges_of_recorded_trace_match_reference(name: str, purge_interval: int) -> None:
    trace = oracle_groups.load(name)
    group = trace.config.group.model_copy(update={"purge_interval": purge_interval})
    config = trace.config.model_copy(update={"group": group})
    assert differences(trace.events, config, [200, 400]) == ([], [])
