"""Trimming a log changes no answer: fetches far behind the watermarks, over many segments, by all kinds of readers."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.reference.reference_replay import replay as reference_replay
from tests.rules.reference.timeline import Timeline
from tests.support.examples import examples
from tests.support.outcome_rows import outcomes_of

Event = dict[str, Any]

_BATCH_SIZES = (0, 1, 10, 30, 30, 60, 100, 250, 900)
_PARTITION_LIMITS = (100, 250, 400)
_REQUEST_LIMIT = 10_000
_PARTITIONS = ("a", "b")


class _Log:
    """Writes one partition's appends, rolls, watermarks and deletions."""

    def __init__(self, chance: Random, timeline: Timeline, partition: str) -> None:
        self._chance, self._timeline, self._partition = chance, timeline, partition
        self.end = self.high_watermark = self._last_stable = 0
        self._transactional = chance.random() < 0.5

    def grow(self, ms: int) -> None:
        for _ in range(self._chance.randint(1, 3)):
            if self.end and self._chance.random() < 0.15:
                self._timeline.change(ms, self._partition, "segment_roll", offset=self.end)
            self.end += self._chance.randint(1, 3)
            size = self._chance.choice(_BATCH_SIZES)
            batches = self._chance.choice((1, 1, 1, 2))
            self._timeline.change(ms, self._partition, "log_end", offset=self.end, bytes=size, batches=batches)
        self.high_watermark = self._between(self.high_watermark)
        self._timeline.high_watermark(ms, self._partition, self.high_watermark)
        if self._transactional:
            self._last_stable = min(self._between(self._last_stable), self.high_watermark)
            self._timeline.change(ms, self._partition, "last_stable", offset=self._last_stable)
        if self._chance.random() < 0.02:
            self._timeline.change(ms, self._partition, "log_start", offset=self._chance.randint(0, self._last_stable))

    def _between(self, offset: int) -> int:
        return self._chance.choice((self.end, self.end, self._chance.randint(offset, self.end)))


def far_behind(seed: int, duration_ms: int = 150) -> list[Event]:
    """Return a trace of two growing logs, with fetches anywhere in them."""
    chance, timeline = Random(seed), Timeline()
    logs = {partition: _Log(chance, timeline, partition) for partition in _PARTITIONS}
    for ms in range(1, duration_ms):
        logs[chance.choice(_PARTITIONS)].grow(ms)
        for number in range(chance.randint(0, 3)):
            parts = {
                name: {
                    "fetch_offset": chance.randint(0, logs[name].end),
                    "max_bytes": chance.choice(_PARTITION_LIMITS),
                    "throttled": chance.random() < 0.1,
                }
                for name in chance.sample(_PARTITIONS, chance.randint(1, 2))
            }
            timeline.fetch(
                ms, f"{ms}-{number}", chance.choice((0, 5, 50)), chance.choice((1, 100, 500)), parts,
                replica_id=chance.choice((-1, -1, 2)), max_bytes=_REQUEST_LIMIT,
                isolation=chance.choice(("read_uncommitted", "read_committed")),
                hard_max_bytes=chance.random() < 0.1,
            )  # fmt: skip
    return timeline.events


def _trimming(config: Config, smallest_limit: int = min(_PARTITION_LIMITS)) -> Engine:
    return Engine(config, serialize=True, retain_bytes=max(_PARTITION_LIMITS), smallest_limit=smallest_limit)


def _in_calls(events: list[Event], size: int, engine: Engine) -> list[Outcome]:
    """Return the outcomes of calls of about `size` events. No millisecond is split between two calls."""
    ms = [event["time_us"] // 1000 for event in events]
    borders = [row for row in range(1, len(ms)) if ms[row] != ms[row - 1] and row % size == 0]
    table = event_table(events)
    calls = [table.slice(a, b - a) for a, b in zip([0, *borders], [*borders, len(ms)], strict=True)]
    tables = loop_replay(calls, engine)
    return outcomes_of(tables.completions, tables.expirations, tables.cancellations)


def _reference(events: list[Event]) -> list[Outcome]:
    ended = reference_replay(events, Config(drain=True)).outcomes
    kept = (outcome if outcome.expired or outcome.cancelled else replace(outcome, fetcher=None) for outcome in ended)
    return sorted(kept, key=lambda outcome: outcome.operation_id)


@examples(10)
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 17, 100_000]), st.sampled_from([0, min(_PARTITION_LIMITS)]))
def test_trimming_changes_no_answer(seed: int, size: int, smallest_limit: int) -> None:
    events = far_behind(seed)
    assert _in_calls(events, size, _trimming(Config(), smallest_limit)) == _reference(events)


@pytest.mark.parametrize("seed", range(6))
def test_trimming_of_short_logs_changes_no_answer(seed: int) -> None:
    """Short enough for a run without compilation."""
    events = far_behind(seed, duration_ms=60)
    assert _in_calls(events, 10, _trimming(Config())) == _reference(events)


def test_state_keeps_segments_above_log_start() -> None:
    """Its first batch and its last four stay, until its records are deleted; of the oldest, only the last four."""
    timeline = Timeline()
    for end in range(1, 1_001):
        if end % 100 == 1 and end > 1:
            timeline.change(end, "a", "segment_roll", offset=end - 1)
        timeline.change(end, "a", "log_end", offset=end, bytes=100, batches=1).high_watermark(end, "a", end)
    engine = _trimming(Config())
    engine.feed(event_table(timeline.events))
    (state,) = engine.states.values()
    assert (len(state.rolls), len(state.batches)) == (9, 9 + 10 * 4)
    engine.feed(event_table(Timeline().change(2_000, "a", "log_start", offset=750).events))
    (state,) = engine.states.values()
    assert (len(state.rolls), len(state.batches)) == (3, 2 + 3 * 4)
