"""`top`: from the states of the engine and of consumer groups, through status files, to lines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.tables import EVENTS
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.groups.group_rows import RequestBatch
from purgatory_udf.rules.groups.group_state_store import GroupSnapshot
from purgatory_udf.rules.groups.group_step import step
from purgatory_udf.streaming.status_file import QueryStatus
from purgatory_udf.streaming.status_update import GroupStatusUpdate, event_count_update, partition_update
from purgatory_udf.streaming.top_screen import as_json, render_frame
from tests.rules.reference.timeline import Timeline
from tests.support.group_timeline import GroupTimeline

ROOT = Path(__file__).parents[2]


def partition_updates(timeline: Timeline, ms: float) -> list[tuple[str, dict[str, Any]]]:
    """Return the updates of one batch, which ends at `ms`."""
    engine = Engine(Config())
    decided = engine.feed(event_table(timeline.add(ms, "log", topic="t").events))
    calls = zip(engine.states, decided, strict=True)
    return [(name, json.loads(partition_update(engine.states[name], call, has_gauges=True))) for name, call in calls]


def reasons(timeline: Timeline, ms: float = 20) -> list[str]:
    return [operation["lacks"] for _, update in partition_updates(timeline, ms) for operation in update["oldest"]]


def led_partition() -> Timeline:
    """Return the partition orders-3, led by broker 0, with followers 1 at offset 190 and 2 at offset 500."""
    timeline = Timeline().change(1, "orders-3", "leader", leader_epoch=1, replicas=[0, 1, 2], isr=[0, 1, 2], min_isr=2)
    timeline.change(2, "orders-3", "replica_end", replica_id=1, offset=190)
    return timeline.change(2, "orders-3", "replica_end", replica_id=2, offset=500)


def test_produce_lacks_replicas() -> None:
    assert reasons(led_partition().produce(10, "p", 30_000, **{"orders-3": 1002})) == [
        "orders-3: in-sync replicas 1, 2 of 3 behind by 812 offsets"
    ]
    one_behind = led_partition().produce(10, "p", 30_000, **{"orders-3": 200, "a-1": 7})
    assert reasons(one_behind) == ["orders-3: in-sync replica 1 of 3 behind by 10 offsets (and 1 more)"]
    not_fetched = Timeline().change(1, "a-0", "leader", leader_epoch=1, replicas=[0, 1], isr=[0, 1], min_isr=1)
    assert reasons(not_fetched.produce(10, "p", 30_000, **{"a-0": 5})) == [
        "a-0: in-sync replica 1 of 2 without a fetch yet"
    ]
    too_few = Timeline().change(1, "a-0", "leader", leader_epoch=1, replicas=[0, 1], isr=[0], min_isr=2)
    assert reasons(too_few.produce(10, "p", 30_000, **{"a-0": 5})) == ["a-0: 1 in-sync replicas, 2 are needed"]


def test_produce_lacks_high_watermark_without_known_replicas() -> None:
    assert reasons(Timeline().produce(10, "p", 30_000, **{"a-0": 5})) == [
        "a-0: high watermark unknown, offset 5 is needed"
    ]
    known = Timeline().high_watermark(1, "a-0", 2).produce(10, "p", 30_000, **{"a-0": 5})
    assert reasons(known) == ["a-0: high watermark short by 3 offsets"]


def test_fetch_lacks_bytes() -> None:
    timeline = Timeline().log_end(1, "a-0", 0).high_watermark(1, "a-0", 0)
    timeline.fetch(2, "f", 500, 1000, {"a-0": 0})
    timeline.fetch(3, "g", 500, 5000, {"a-0": 0, "b-1": 0})
    timeline.log_end(4, "a-0", 10, 400).high_watermark(5, "a-0", 10)
    assert reasons(timeline) == ["a-0: 400 of 1,000 bytes", "a-0 and 1 more: 400 of 5,000 bytes"]


def test_tiered_requests_lack_ends_of_reads() -> None:
    timeline = Timeline()
    for partition in ("a-0", "b-1"):
        timeline.log_end(1, partition, 100, 1_000).high_watermark(1, partition, 100)
        timeline.change(2, partition, "local_log_start", offset=50)
    timeline.fetch(3, "f", 500, 1, {"a-0": 5, "b-1": 60})
    times = [{"topic": "a", "partition": 0, "timestamp": 7}, {"topic": "b", "partition": 1, "timestamp": 7}]
    timeline.add(4, "list_offsets", request_id="l", timeout_ms=500, isolation="read_uncommitted", partitions=times)
    assert sorted(reasons(timeline)) == ["a-0: remote lookup (and 1 more)", "a-0: remote read"]
    # The fetch has ended and waits for the end of its read, but not in the purgatory.
    assert reasons(timeline, 510) == []


def test_admin_requests_lack_low_watermark_and_leaders() -> None:
    timeline = Timeline().high_watermark(1, "a-0", 100).change(1, "a-0", "log_start", offset=20)
    timeline.delete_records(2, "d", 500, **{"a-0": 70})
    timeline.create_topics(3, "c", 500, new=4)
    assert sorted(reasons(timeline)) == ["a-0: low watermark short by 50 offsets", "new: leaders of 0 of 4 partitions"]


def test_update_lists_five_oldest_operations() -> None:
    timeline = Timeline()
    for ms in range(10, 20):
        timeline.produce(ms, f"p{ms}", 30_000, **{"a-0": ms})
    ((_, update),) = partition_updates(timeline, 20)
    assert [operation["request_id"] for operation in update["oldest"]] == ["p10", "p11", "p12", "p13", "p14"]
    assert (update["open"], update["purgatories"]) == (10, [[0, "Produce", 10, 10]])


def group_update() -> GroupStatusUpdate:
    """Return the update of a group of a and b; at 7000 a has joined again, b has not."""
    group = GroupTimeline()
    group.join(1000, "a")
    group.join(1000, "b")
    group.sync(6100, "b")
    group.sync(6200, "a")
    group.rejoin(7000, "a")
    config = Config.model_validate({"group": {"min_session_timeout_ms": 0}})
    events = pa.Table.from_pylist([{"broker": 0} | event for event in group.events], schema=EVENTS)
    update = GroupStatusUpdate()
    for key, rows in RequestBatch.from_events(events).by_group():
        snapshot, result = step(key, GroupSnapshot(), rows, 7000, config.group)
        update.add(key, False, snapshot, result.transitions, result.operations)
    return update


def test_frame_shows_purgatories_waits_and_rebalances() -> None:
    status = QueryStatus("run-1")
    timeline = led_partition().produce(10, "p-1", 30_000, **{"orders-3": 1002}).fetch(20, "f-1", 100, 1, {"a-0": 5})
    assert status.add_batch(0, 7000, [*partition_updates(timeline, 5000), ("", json.loads(event_count_update(5)))])
    status.written_ms = 100_000
    coordinators = QueryStatus("run-1")
    coordinators.add_batch(0, 7000, [("", group_update().to_dict())])
    statuses = {"groups": coordinators, "partitions": QueryStatus.from_json(status.to_json())}
    assert render_frame(statuses, rows=10, terminal=False, now_ms=103_000, ended=False) == [
        "Run run-1: 1970-01-01 00:00:07.000 · 5 events · 1 operations open · updated 3 s ago",
        "Broker 1 is behind: produces have waited for it since 00:00:00.010, 6,990 ms",
        "Broker 2 is behind: produces have waited for it since 00:00:00.010, 6,990 ms",
        "",
        "Purgatories",
        "  broker  purgatory  watched  delayed  expired/s  longest wait ms",
        "       0  Fetch            1        0        0.1                -",
        "       0  Produce          1        1        0.0            6,990",
        "",
        "Waiting longest",
        "  request  kind     broker  client  waiting ms  ms left  lacks",
        "  p-1      produce       0       -       6,990   23,010  orders-3: in-sync replicas 1, 2 of 3 "
        "behind by 812 offsets",
        "",
        "Groups in rebalance",
        "  group  broker  state               since ms  ms left  missing  members",
        "  g           0  PreparingRebalance         0    5,000  1 of 2   b",
    ]
    told = as_json(statuses, rows=10, now_ms=103_000, ended=False)
    assert [problem["kind"] for problem in told["problems"]] == ["follower_behind", "follower_behind"]
    assert told["lagging_replicas"][0] | {"since": None} == {"replica": 1, "since": None, "waited_ms": 6_990}
    assert told["purgatories"][0]["expired_per_s"] == 0.1 and told["age_ms"] == 3_000
    assert [row["request"] for row in told["waits"]] == ["p-1"]
    assert [row["ms_left"] for row in told["rebalances"]] == [5_000]


def test_frame_begins_with_what_is_wrong() -> None:
    """A partition below its minimum, a group that waits for b, and an expired session."""
    timeline = led_partition().produce(10, "p-1", 30_000, **{"orders-3": 1002})
    timeline.change(20, "orders-3", "isr", isr=[0])
    partitions, coordinators = QueryStatus("run-1"), QueryStatus("run-1")
    partitions.add_batch(0, 12_000, partition_updates(timeline, 5000))
    update = group_update().to_dict()
    coordinators.add_batch(0, 12_000, [("", update | {"expired": [[11, 2, "Heartbeat", 1]]})])
    statuses = {"partitions": partitions, "groups": coordinators}
    lines = render_frame(statuses, rows=10, terminal=False, now_ms=12_000, ended=False)
    assert lines[1:4] == [
        "orders-3 is below min.insync.replicas: produces have waited since 00:00:00.010, 11,990 ms",
        "Group g waits for b: the group has rebalanced since 00:00:07.000, 5,000 ms",
        "1 session of group members expired at broker 2 in the last 10 s",
    ]


def test_frame_shows_moved_leaders_and_storms() -> None:
    """Broker 0 loses its leadership while a produce waits; g rebalances five times within a minute."""
    timeline = led_partition().produce(4_000, "p-1", 30_000, **{"orders-3": 1002})
    timeline.change(5_000, "orders-3", "not_leader")
    partitions, coordinators = QueryStatus("run-1"), QueryStatus("run-1")
    partitions.add_batch(0, 5_000, partition_updates(timeline, 5_500))
    update = group_update().to_dict()
    assert update["rebalanced"] == [[7, 0, "g", 1]]
    for batch in range(4):
        started = [[8 + 2 * batch, 0, "g", 1]]
        coordinators.add_batch(batch, 14_500, [("", {"rebalances": {}, "rebalanced": started})])
    coordinators.add_batch(4, 14_500, [("", update)])
    statuses = {"partitions": QueryStatus.from_json(partitions.to_json()), "groups": coordinators}
    lines = render_frame(statuses, rows=10, terminal=False, now_ms=14_500, ended=False)
    assert lines[1:4] == [
        "Leaders moved away from broker 0: 1 waiting request ended there since 00:00:05.000, 9,500 ms",
        "Group g waits for b: the group has rebalanced since 00:00:07.000, 7,500 ms",
        "Group g has rebalanced 5 times since 00:00:07.000, 7,500 ms",
    ]
    later = QueryStatus.from_json(partitions.to_json())
    later.add_batch(1, 30_000, [])
    assert not as_json({"partitions": later}, rows=10, now_ms=30_000, ended=False)["problems"]


def test_repeated_batch_counts_once() -> None:
    """A rebalance that has ended and expirations older than a minute are removed."""
    status = QueryStatus("run-1")
    update = {
        "completions": 2,
        "expirations": 1,
        "expired": [[5, 0, "Fetch", 1]],
        "rebalances": {"0/g": {"group": "g"}},
    }
    assert status.add_batch(7, 6000, [("broker-0", update)])
    assert not status.add_batch(7, 6000, [("broker-0", update)])
    assert status.add_batch(8, 70_000, [("", {"expired": [[66, 0, "Fetch", 2]], "rebalances": {"0/g": None}})])
    assert status.counts == {"events": 0, "completions": 2, "expirations": 1, "cancellations": 0, "transitions": 0}
    assert (status.expired, status.rebalances) == ([[66, 0, "Fetch", 2]], {})


def top(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the job in a process that fails if it imports a library that starts slowly."""
    heavy = "sys.modules.keys() & {'pyspark', 'numba', 'numpy', 'pandas', 'pyarrow'}"
    code = (
        f"import sys; from jobs.top import main; status = main.status(sys.argv[1:]); sys.exit(status or bool({heavy}))"
    )
    command = [sys.executable, "-c", code, "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_once_prints_frame_without_slow_imports(tmp_path: Path) -> None:
    status = QueryStatus("run-1", counts={"events": 5, "completions": 0, "expirations": 0, "transitions": 0})
    folder = tmp_path / "_replay" / "live"
    folder.mkdir(parents=True)
    (folder / "partitions.json").write_text(status.to_json())
    told = json.loads(top(tmp_path, "--json", "-").stdout)
    assert (told["run_id"], told["time"], told["events"], told["has_ended"]) == (
        "run-1",
        "1970-01-01T00:00:00Z",
        5,
        True,
    )
    ended = top(tmp_path, "--once")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Run run-1: 1970-01-01 00:00:00.000 · 5 events · 0 operations open · the replay has stopped\n"
    )


def test_top_fails_without_followed_replay(tmp_path: Path) -> None:
    ended = top(tmp_path)
    assert ended.returncode == 2
    assert "no followed replay has written there yet" in ended.stderr
