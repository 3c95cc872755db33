"""A consumer is redirected to its preferred replica (KIP-392): `ReplicaManager.fetchMessages` answers at once."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from tests.rules.reference.timeline import Timeline, line
from tests.support.outcome_rows import outcomes_of


def ends(timeline: Timeline) -> list[str]:
    """Return the outcomes of the reference. The compiled loop has to agree."""
    tables = loop_replay([event_table(timeline.events)], Engine(Config()))
    lines = timeline.ends()
    outcomes = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    assert [line(outcome) for outcome in outcomes] == lines
    return lines


def redirected(offset: int = 0) -> dict[str, Any]:
    return {"fetch_offset": offset, "preferred_replica": 2}


def data() -> Timeline:
    timeline = Timeline().log_end(1, "a", 5, 500).high_watermark(1, "a", 5)
    return timeline.log_end(1, "b", 5, 500).high_watermark(1, "b", 5)


@pytest.mark.parametrize("offset", [0, 5])
def test_preferred_replica_is_answered_at_once(offset: int) -> None:
    assert ends(data().fetch(10, "f", 100, 1, {"a": redirected(offset)})) == [
        "f completed 10 preferred_replica - a-0:0"
    ]


def test_other_partitions_are_read() -> None:
    timeline = data().fetch(10, "f", 100, 10_000, {"a": redirected(), "b": 0})
    assert ends(timeline) == ["f completed 10 preferred_replica - a-0:0,b-0:500"]
    assert [outcome.answered_bytes for outcome in timeline.replay().outcomes] == [500]


def test_error_takes_precedence_over_redirect() -> None:
    timeline = data().fetch(10, "f", 100, 1, {"a": redirected(), "b": 99})
    assert ends(timeline) == ["f completed 10 offset_out_of_range - a-0:0,b-0:OFFSET_OUT_OF_RANGE"]


def test_follower_is_never_redirected() -> None:
    timeline = data().fetch(10, "f", 100, 1, {"a": redirected()}, replica_id=3)
    assert ends(timeline) == ["f completed 10 min_bytes - a-0:500"]


def test_debugging_consumer_reads_to_high_watermark() -> None:
    timeline = data().log_end(2, "a", 6, 100).fetch(10, "f", 100, 1, {"a": 0}, replica_id=-2)
    assert ends(timeline) == ["f completed 10 min_bytes - a-0:500"]
