"""Share groups against Kafka's own classes: every answer, acquired range, state, meter and gauge has to be equal."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.reference_replay import Replayer
from purgatory_udf.rules.reference.share_broker import ShareBroker
from purgatory_udf.rules.reference.share_partition import SharePartition
from tests.support import share_traces
from tests.support.share_traces import Row, ShareTrace

CASES = share_traces.cases()


@pytest.mark.parametrize(("title", "trace"), CASES, ids=[title for title, _ in CASES])
def test_hand_made_case(title: str, trace: ShareTrace) -> None:
    replayed = _replay(trace)
    assert replayed.fetches == trace.fetches
    assert replayed.answers == trace.answers
    assert replayed.states == trace.states
    assert replayed.expirations == trace.expirations


@pytest.mark.parametrize("name", share_traces.names())
def test_recorded_trace(name: str) -> None:
    trace = share_traces.load(name)
    replayed = _replay(trace)
    assert replayed.fetches == trace.fetches
    assert replayed.answers == trace.answers
    assert replayed.states == trace.states
    assert replayed.expirations == trace.expirations
    assert replayed.gauges == trace.gauges


@dataclass
class Replayed:
    """The rows of a replay that `ShareTrace` has too."""

    fetches: list[Row] = field(default_factory=list)
    answers: list[Row] = field(default_factory=list)
    states: dict[Row, Row] = field(default_factory=dict)
    expirations: int = 0
    gauges: list[tuple[int, ...]] = field(default_factory=list)


class _Driver:
    """Applies the events of a trace, and reads states and gauges at the times at which Kafka's were read."""

    def __init__(self, trace: ShareTrace) -> None:
        self.replayer = Replayer(trace.config, trace.events[0]["time_us"] // 1000)
        self.replayed = Replayed()
        self._trace = trace
        self._known: dict[Row, Row] = {}

    @property
    def shares(self) -> ShareBroker:
        return self.replayer.cluster.broker(0).shares

    def run(self) -> Replayed:
        reading_times = {reading[0] for reading in self._trace.gauges}
        stops = sorted(reading_times | {key[0] for key in self._trace.states})
        for event in [*self._trace.events, None]:
            while stops and (event is None or stops[0] <= event["time_us"] // 1000):
                at_ms = stops.pop(0)
                self.replayer.apply({"type": "clock", "time_us": at_ms * 1000})
                self._read_states(at_ms)
                if at_ms in reading_times:
                    self._read_gauges(at_ms)
            if event is not None:
                self.replayer.apply(event)
                self._read_states(event["time_us"] // 1000)
        self.replayer.finish()
        self._read_answers()
        return self.replayed

    def _fetches(self) -> list[DelayedShareFetch]:
        return [operation for operation in self.replayer.operations if isinstance(operation, DelayedShareFetch)]

    def _read_answers(self) -> None:
        self.replayed.fetches = sorted(_fetch_row(fetch) for fetch in self._fetches())
        self.replayed.expirations = sum(fetch.expired for fetch in self._fetches())
        for answer in self.shares.answers:
            end = "completed" if answer.waited else "arrival"
            assert answer.written_us is not None
            # The end of a session has no error.
            errors = answer.errors.values() if answer.type == "share_acknowledge" else ()
            error = next((error for error in errors if error != "NONE"), "NONE")
            self.replayed.answers.append((answer.request_id, end, answer.written_us // 1000, error))
        self.replayed.answers.sort()

    def _read_states(self, at_ms: int) -> None:
        states: dict[Row, Row] = dict.fromkeys(self._known, ("none",))
        for (group, key), partition in self.shares.partitions.items():
            states[group, *key] = _state_row(partition)
        for place, row in states.items():
            if self._known.get(place) != row:
                self._known[place] = row
                self.replayed.states[at_ms, *place] = row

    def _read_gauges(self, at_ms: int) -> None:
        purgatory = self.shares.purgatory
        expired = sum(fetch.expired for fetch in self._fetches())
        locks = sum(self.shares.expired_locks.values())
        gauges = (purgatory.watched(), purgatory.num_delayed(), self.shares.lock_timer.size(), expired, locks)
        self.replayed.gauges.append((at_ms, *gauges))


def _replay(trace: ShareTrace) -> Replayed:
    return _Driver(trace).run()


def _fetch_row(fetch: DelayedShareFetch) -> Row:
    outcome = fetch.outcome()
    end = "expired" if outcome.expired else "completed" if outcome.watched and outcome.trigger else "arrival"
    parts = tuple(
        (part.topic, part.partition, part.error, part.bytes, tuple(map(tuple, fetch.response[key].acquired)))
        for part in outcome.partitions
        for key in fetch.fetch.partitions
        if key == (part.topic, part.partition)
    )
    return outcome.request_id, end, outcome.ended_us // 1000, parts


def _state_row(partition: SharePartition) -> Row:
    """Return a state; adjacent offsets of a batch with equal states are one entry."""
    rows: list[Row] = []
    for batch in partition.batches:
        before: Row | None = None
        for first, last, state in batch.states():
            row: Row = (first, last, state.state.name, state.delivery_count, state.member_id)
            if before is not None and before[2:] == row[2:]:
                rows[-1] = row = (before[0], *row[1:])
            else:
                rows.append(row)
            before = row
    return "ACTIVE", partition.start_offset, partition.end_offset, tuple(rows)
