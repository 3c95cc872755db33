"""The open loop: an exact number of events, independent of the parallelism, and a valid trace."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import read_row
from purgatory_udf.rules.engine.partition_engine import Engine
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.open_loop.event_rows import slice_rows
from purgatory_udf.simulation.open_loop.partition_requests import arrivals, totals
from purgatory_udf.simulation.open_loop.workload import Workload
from tests.support.outcome_rows import outcomes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = Workload(
    5_000, partitions=60, rate=100, skew=1.0, events_per_slice=1000, incident_s=20, delete_share=0.02, create_share=0.02
)
# Long enough for members of every group to depart and return.
LONG = Workload(30_000, partitions=60, rate=200, events_per_slice=5_000)

GROUP_EVENTS = {"join_group", "sync_group", "heartbeat", "offset_commit", "leave_group"}
GROUP_OPERATIONS = {"initial_join", "join", "sync", "heartbeat"}


def _slices(workload: Workload) -> list[pa.Table]:
    return [slice_rows(workload, number, "run") for number in range(workload.slices)]


def _events(tables: list[pa.Table]) -> list[dict[str, Any]]:
    rows = itertools.chain.from_iterable(table.to_pylist() for table in tables)
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.mark.parametrize("events", [127, 128, 129, 5_000, 60_000])
def test_event_count_is_exact(events: int) -> None:
    workload = Workload(events, partitions=60)
    assert sum(table.num_rows for table in _slices(workload)) == events


TRANSACTIONAL = replace(SMALL, events=6_000, transaction_share=0.5, transaction_ms=700)


def test_transaction_ends_count_as_events() -> None:
    events = _events(_slices(TRANSACTIONAL))
    ends = [event for event in events if event.get("change") == "last_stable"]
    assert (len(events), len(ends)) == (6_000, TRANSACTIONAL.transaction_ends)
    of_one = [event["time_us"] for event in ends if (event["topic"], event["partition"]) == ("topic-0", 1)]
    assert len(of_one) > 5 and set(np.diff(of_one).tolist()) == {700_000}
    assert len({(event["topic"], event["partition"]) for event in ends}) == 30


def test_committed_readers_fetch_at_last_stable_offset() -> None:
    """The last stable offset is the high watermark of the last transaction end.

    A fetch from beyond it would complete at once (case C).
    """
    stable: dict[tuple[str, int], int] = {}
    mark: dict[tuple[str, int], int] = {}
    asked = 0
    for event in _events(_slices(TRANSACTIONAL)):
        key = (event.get("topic", ""), event.get("partition", -1))
        if event.get("change") == "high_watermark":
            mark[key] = max(mark.get(key, 0), event["offset"])
        elif event.get("change") == "last_stable":
            assert event["offset"] == mark[key]
            stable[key] = event["offset"]
        elif event["type"] == "fetch" and event["isolation"] == "read_committed":
            for part in event["partitions"]:
                place = (part["topic"], part["partition"])
                assert part["fetch_offset"] == stable.get(place, mark[place])
                asked += 1
    assert asked > 100


def test_committed_readers_wait_longer() -> None:
    """The waits are those of a replay of the trace."""
    tables = _slices(TRANSACTIONAL)
    replayed = loop_replay([pa.concat_tables(tables)], Engine(Config()))
    committed = {event["seq"] for event in _events(tables) if event.get("isolation") == "read_committed"}
    waits: dict[bool, list[int]] = {True: [], False: []}
    for outcome in outcomes_of(replayed.completions, replayed.expirations):
        if outcome.kind == "fetch" and (outcome.operation_id in committed or outcome.fetcher != "follower"):
            waits[outcome.operation_id in committed].append(outcome.wait_ms)
    assert min(len(waits[True]), len(waits[False])) > 50
    assert np.mean(waits[True]) > np.mean(waits[False])


def test_slice_knows_earlier_arrivals() -> None:
    workload = Workload(40_000, partitions=30, rate=1000, events_per_slice=1000)
    before = np.zeros(30, dtype=np.int64)
    fetches, deletes, creations = 0, 0, 0
    for number in range(workload.slices):
        arriving = arrivals(workload, number)
        assert arriving.before.tolist() == before.tolist()
        assert arriving.created_before == creations
        before += arriving.produces
        fetches += arriving.fetches
        deletes += arriving.deletes
        creations += arriving.creations
    assert workload.slices > 5
    assert [*before.tolist(), fetches, deletes, creations] == totals(workload).tolist()


def test_events_are_valid_and_ordered_across_slices() -> None:
    """No millisecond is split between two slices."""
    tables = _slices(SMALL)
    assert len(tables) > 2
    events = _events(tables)
    keys = [(event["time_us"], event["seq"]) for event in map(read_row, events)]
    assert keys == sorted(set(keys))
    ends = [(table["time_us"][0].as_py() // 1000, table["time_us"][-1].as_py() // 1000) for table in tables]
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ends))


def test_fetches_start_at_current_offsets() -> None:
    """Logs grow without gaps; followers fetch from the log end, consumers from the high watermark."""
    events = _events(_slices(SMALL))
    ends: Counter[tuple[str, int]] = Counter()
    marks: Counter[tuple[str, int]] = Counter()
    for event in events:
        if event["type"] == "produce":
            (part,) = event["partitions"]
            assert part["base_offset"] == ends[part["topic"], part["partition"]]
            ends[part["topic"], part["partition"]] = part["last_offset"] + 1
        elif event.get("change") == "high_watermark":
            key = event["topic"], event["partition"]
            marks[key] = max(marks[key], event["offset"])
        elif event["type"] == "fetch":
            known = ends if event["replica_id"] >= 0 else marks
            for part in event["partitions"]:
                assert part["fetch_offset"] == known[part["topic"], part["partition"]]
    assert marks == ends, "every record is replicated in the end"


def test_requests_match_rate_and_shares() -> None:
    kinds = Counter(event["type"] for event in _events(_slices(LONG)))
    requests = kinds.total() - kinds["partition"]
    assert requests == pytest.approx(LONG.rate * LONG.length_us / 1e6, rel=0.05)
    assert sum(kinds[kind] for kind in GROUP_EVENTS) == pytest.approx(LONG.group_share * requests, rel=0.1)
    assert kinds["heartbeat"] > 0.2 * requests
    assert {*kinds} == {"produce", "fetch", "partition", "delete_records", "create_topics", *GROUP_EVENTS}


def test_zero_share_omits_requests() -> None:
    workload = Workload(2_000, partitions=60, group_share=0, delete_share=0, create_share=0)
    kinds = Counter(event["type"] for event in _events(_slices(workload)))
    assert {*kinds} == {"produce", "fetch", "partition"}
    assert kinds.total() == 2_000


def test_engine_agrees_with_reference() -> None:
    """The trace is a realistic one: most produces wait for replication."""
    tables = _slices(SMALL)
    truth = [outcome for outcome in replay(_events(tables), Config()).outcomes if outcome.kind not in GROUP_OPERATIONS]
    replayed = loop_replay(tables, Engine(Config()))
    core = outcomes_of(replayed.completions, replayed.expirations, replayed.cancellations)
    kept = (outcome if outcome.expired else replace(outcome, fetcher=None) for outcome in truth)
    assert core == sorted(kept, key=lambda outcome: outcome.operation_id)
    ends = Counter((outcome.kind, outcome.completed_by) for outcome in truth)
    produced = sum(count for (kind, _), count in ends.items() if kind == "produce")
    assert ends["produce", "high_watermark"] > 0.8 * produced
    expected_ends = {("delete_records", "low_watermark"), ("create_topics", "leaders"), ("produce", "acks")}
    assert expected_ends <= {*ends}


def test_latencies_match_percentiles() -> None:
    from purgatory_udf.simulation.open_loop.partition_requests import produces

    workload = Workload(90_000, partitions=60)
    made = produces(workload, 0)
    latency_ms = (made.replicated_t - made.t) / 1000
    assert np.percentile(latency_ms, 50) == pytest.approx(20, rel=0.05)
    assert np.percentile(latency_ms, 75) == pytest.approx(60, rel=0.05)
    gaps = np.diff(np.sort(made.t))
    # In a Poisson process the standard deviation of the intervals equals their mean.
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_skew_favours_first_partition() -> None:
    counts = totals(Workload(50_000, partitions=60, skew=2))[:60]
    assert counts[0] > counts[1:].sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"events": 100}, "--events 100: 1000 partitions need at least"),
        ({"events": 9_000, "p75_ms": 1}, "--p75-ms 1: must be >= --median-ms, which is 20"),
        ({"events": 9_000, "keys": 500}, "--keys 500: must be <= 333, the number of partitions that a broker leads"),
        (
            {"events": 9_000, "group_share": 1},
            "the sum of --group-share, --delete-share and --create-share must be <= 0.95",
        ),
        (
            {"events": 9_000, "heartbeat_ms": 4000},
            "--heartbeat-ms 4000: must be <= 3333, a third of --session-timeout-ms",
        ),
        ({"events": 9_000, "incident_s": 19}, "--incident-s 19: must be >= 20 with this --session-timeout-ms"),
        (
            {"events": 400, "partitions": 60, "rate": 100, "members": 30, "group_share": 0.9},
            "--events 400: --group-share 0.9 leaves no room for other requests",
        ),
    ],
)
def test_impossible_workload_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Workload(**options)


@pytest.mark.nightly
def test_spark_trace_does_not_depend_on_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """The table's files are listed in time order."""
    from purgatory_udf.simulation.open_loop.event_rows import events_of, write_events
    from purgatory_udf.storage.event_staging import is_in_time_order

    expected = pa.concat_tables(_slices(SMALL))
    assert {*GROUP_EVENTS, "delete_records", "create_topics"} < {*expected["type"].to_pylist()}
    by_one_task = events_of(spark, SMALL, "run", tasks=1).toArrow()
    assert by_one_task.cast(expected.schema).equals(expected)
    path = str(tmp_path / "events")
    write_events(events_of(spark, SMALL, "run"), path)
    written = spark.read.format("delta").load(path).orderBy("seq").toArrow()
    assert written.cast(expected.schema).equals(expected)
    assert is_in_time_order(spark, path)
    (log,) = Path(path, "_delta_log").glob("*.json")
    added = [json.loads(line)["add"] for line in log.read_text().splitlines() if "add" in json.loads(line)]
    first = [json.loads(add["stats"])["minValues"]["time_us"] for add in added]
    assert len(first) == SMALL.slices
    assert first == sorted(first)
