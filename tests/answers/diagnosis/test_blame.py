"""`blame` divides the wait of each operation among the conditions that it waited for."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis, diagnose
from purgatory_udf.answers.run_tables import RunTables, sql_file
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.contract import read_row
from purgatory_udf.contract.tables import TABLES
from tests.support.group_timeline import GroupTimeline
from tests.support.outcome_folder import sample_with_group, write_folder

MS = 1_000
BEGIN_US = 1_772_442_000_000_000


def _blame(out: Path) -> dict[str, list[tuple[str, int | None, int]]]:
    """Return the cause, the replica and the milliseconds of each part, by request."""
    diagnose(LocalBackend(), str(out))
    tables = RunTables(LocalBackend(), str(out))
    tables.add("blame", "ended")
    rows = tables.database.query(
        "SELECT e.request_id, b.cause, b.replica, b.wait_ms FROM blame b JOIN ended e "
        "ON e.operation_id = b.operation_id ORDER BY b.operation_id, b.started_at"
    ).to_pylist()
    parts: dict[str, list[tuple[str, int | None, int]]] = {}
    for row in rows:
        parts.setdefault(row["request_id"], []).append((row["cause"], row["replica"], row["wait_ms"]))
    return parts


class Timeline:
    """Events of broker 1, which leads orders-0 and orders-1 with the in-sync replicas 1, 2 and 3; times in ms."""

    def __init__(self, min_isr: int = 2) -> None:
        self.events: list[dict[str, Any]] = []
        for partition in (0, 1):
            self.change(0, "leader", partition, isr=[1, 2, 3], replicas=[1, 2, 3], min_isr=min_isr)
            self.change(0, "log_end", partition, offset=100, bytes=0)
            self.replicated(0, 2, 100, partition)
            self.replicated(0, 3, 100, partition)

    def add(self, ms: float, kind: str, **fields: Any) -> None:
        self.events.append({"time_us": BEGIN_US + round(ms * MS), "type": kind, "broker": 1, **fields})

    def change(self, ms: float, change: str, partition: int = 0, **fields: Any) -> None:
        self.add(ms, "partition", topic="orders", partition=partition, change=change, **fields)

    def replicated(self, ms: float, replica: int, offset: int, partition: int = 0) -> None:
        self.change(ms, "replica_end", partition, replica_id=replica, offset=offset)

    def produce(self, ms: float, request: str, *last_offsets: int, timeout_ms: int = 1_000) -> None:
        parts = [
            {"topic": "orders", "partition": number, "base_offset": 100, "last_offset": last, "bytes": 100}
            for number, last in enumerate(last_offsets)
        ]
        self.add(ms, "produce", request_id=request, client_id="app", acks=-1, timeout_ms=timeout_ms, partitions=parts)

    def fetch(self, ms: float, request: str, min_bytes: int = 1, max_wait_ms: int = 500, partitions: int = 1) -> None:
        parts = [
            {"topic": "orders", "partition": number, "fetch_offset": 100, "max_bytes": 1_048_576}
            for number in range(partitions)
        ]
        self.add(
            ms, "fetch", request_id=request, client_id="reader", max_wait_ms=max_wait_ms, min_bytes=min_bytes,
            partitions=parts,
        )  # fmt: skip

    def blame(self, out: Path) -> dict[str, list[tuple[str, int | None, int]]]:
        ordered = sorted(self.events, key=lambda event: event["time_us"])
        write_folder(out, [read_row(event) | {"seq": number} for number, event in enumerate(ordered)])
        return _blame(out)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_last_follower_is_charged_from_the_one_before(out: Path) -> None:
    timeline = Timeline()
    timeline.produce(10, "p", 104)
    timeline.replicated(12, 2, 105)
    timeline.replicated(40, 3, 105)
    assert timeline.blame(out)["p"] == [("follower_behind", 2, 2), ("follower_behind", 3, 28)]


def test_missing_follower_has_rest_of_expired_wait(out: Path) -> None:
    timeline = Timeline()
    timeline.produce(10, "p", 104, timeout_ms=100)
    timeline.replicated(12, 2, 105)
    timeline.replicated(300, 3, 105)
    assert timeline.blame(out)["p"] == [("follower_behind", 2, 2), ("follower_behind", 3, 98)]


def test_last_of_two_missing_followers_is_charged(out: Path) -> None:
    timeline = Timeline()
    timeline.produce(10, "p", 104, timeout_ms=100)
    timeline.replicated(200, 2, 105)
    timeline.replicated(900, 3, 105)
    assert timeline.blame(out)["p"] == [("follower_behind", 3, 100)]


def test_partitions_are_charged_in_order_of_arrival(out: Path) -> None:
    timeline = Timeline()
    timeline.produce(10, "p", 104, 101)
    timeline.replicated(12, 2, 105)
    timeline.replicated(14, 3, 105)
    timeline.replicated(16, 2, 102, partition=1)
    timeline.replicated(30, 3, 102, partition=1)
    assert timeline.blame(out)["p"] == [
        ("follower_behind", 2, 2), ("follower_behind", 3, 2), ("follower_behind", 2, 2), ("follower_behind", 3, 14),
    ]  # fmt: skip


def test_follower_is_charged_until_it_leaves_isr(out: Path) -> None:
    timeline = Timeline(min_isr=3)
    timeline.produce(10, "p", 104, timeout_ms=200)
    timeline.replicated(10, 2, 105)
    timeline.change(60, "isr", isr=[1, 2])
    timeline.change(60, "isr", 1, isr=[1, 2])
    assert timeline.blame(out)["p"] == [("follower_behind", 3, 50), ("below_min_isr", 3, 150)]


def test_fetch_waits_for_data_then_bytes_then_followers(out: Path) -> None:
    timeline = Timeline()
    timeline.fetch(10, "f", min_bytes=300, partitions=2)
    timeline.change(30, "log_end", offset=101, bytes=100)
    timeline.change(60, "log_end", 1, offset=105, bytes=250)
    timeline.replicated(61, 2, 101)
    timeline.replicated(62, 3, 101)
    timeline.replicated(63, 2, 105, partition=1)
    timeline.replicated(90, 3, 105, partition=1)
    assert timeline.blame(out)["f"] == [
        ("no_data", None, 20), ("below_min_bytes", None, 30), ("follower_behind", 2, 1), ("follower_behind", 3, 1),
        ("follower_behind", 2, 1), ("follower_behind", 3, 27),
    ]  # fmt: skip


def test_idle_fetch_waits_for_data(out: Path) -> None:
    timeline = Timeline()
    timeline.fetch(10, "f")
    timeline.add(700, "clock")
    assert timeline.blame(out)["f"] == [("no_data", None, 500)]


def test_append_that_a_produce_repeats_counts_once(out: Path) -> None:
    timeline = Timeline()
    timeline.fetch(10, "f", min_bytes=150)
    timeline.change(30, "log_end", offset=105, bytes=100)
    timeline.produce(31, "p", 104)
    timeline.replicated(32, 2, 105)
    timeline.replicated(33, 3, 105)
    timeline.add(600, "clock")
    assert timeline.blame(out)["f"] == [("no_data", None, 20), ("below_min_bytes", None, 480)]


def test_throttled_replica_is_blamed_for_refused_produces(out: Path) -> None:
    """Replica 3 is out of sync and throttled for 8 s; replica 2 leaves, and three produces are refused."""
    timeline = Timeline()
    timeline.change(1_000, "isr", isr=[1, 2])
    part = {"topic": "orders", "partition": 0, "fetch_offset": 100, "max_bytes": 1_000, "throttled": True}
    for ms in range(1_000, 9_000, 500):
        timeline.add(
            ms, "fetch", request_id=f"f-{ms}", client_id="fetcher", replica_id=3, max_wait_ms=500, min_bytes=1,
            partitions=[part],
        )  # fmt: skip
    timeline.change(4_000, "isr", isr=[1])
    refused = {"topic": "orders", "partition": 0, "error": "NOT_ENOUGH_REPLICAS"}
    for ms in (5_000, 6_000, 7_000):
        timeline.add(
            ms, "produce", request_id=f"p-{ms}", client_id="app", acks=-1, timeout_ms=1_000, partitions=[refused]
        )
    timeline.change(9_000, "isr", isr=[1, 3])
    timeline.blame(out)
    (finding,) = diagnose(LocalBackend(), str(out)).findings
    assert (finding.kind, finding.broker, finding.topic) == ("replication_throttled", 3, "orders")
    assert (finding.operations, (finding.start_us - BEGIN_US) / MS) == (3, 5_000)


@pytest.mark.parametrize(
    ("every_ms", "serves", "kind"),
    [(100, False, "broker_frozen"), (3_000, False, "follower_stalled"), (100, True, "follower_stalled")],
    ids=["busy before", "idle before", "busy meanwhile"],
)
def test_broker_froze_if_it_was_busy_before(every_ms: int, serves: bool, kind: str, out: Path) -> None:
    """Replica 2 does not fetch for 5 s; its own requests come every `every_ms`, meanwhile only if `serves`."""
    timeline, begin, end = Timeline(), 8_000, 13_000
    offset = 100
    place: dict[str, Any] = {"topic": "orders", "partition": 0}
    follower = {"client_id": "fetcher", "max_wait_ms": 500, "min_bytes": 1}
    for ms in range(10, 20_000, 10):
        if ms % 200 == 0:
            batch = place | {"base_offset": offset, "last_offset": offset, "bytes": 100}
            timeline.add(
                ms, "produce", request_id=f"p-{ms}", client_id="app", acks=-1, timeout_ms=30_000, partitions=[batch]
            )
            offset += 1
        part = place | {"fetch_offset": offset, "max_bytes": 1_000}
        for replica in (2, 3):
            if ms % 100 == 50 and (replica == 3 or not begin <= ms < end):
                timeline.add(
                    ms, "fetch", request_id=f"f-{replica}-{ms}", replica_id=replica, partitions=[part], **follower
                )
        if ms % every_ms == 70 and (serves or not begin <= ms < end):
            timeline.add(ms, "fetch", broker=2, request_id=f"c-{ms}", partitions=[part], **follower)
    timeline.blame(out)
    (finding,) = diagnose(LocalBackend(), str(out)).findings
    assert (finding.kind, finding.broker) == (kind, 2)
    assert (finding.start_us - BEGIN_US) / MS == pytest.approx(begin, abs=100)
    assert (finding.end_us - BEGIN_US) / MS == pytest.approx(end, abs=100)


def test_dump_after_recording_adds_no_finding(diagnosis: Diagnosis, out: Path) -> None:
    """The metadata log was dumped a minute after the last request: nothing is known of members in between."""
    events = sample_with_group()
    at_us = events[-1]["time_us"] + 60_000_000
    change = {"type": "partition", "broker": 1, "topic": "orders", "partition": 0, "change": "isr", "isr": [1, 2, 3]}
    write_folder(out, [*events, read_row(change | {"time_us": at_us}) | {"seq": len(events)}])
    found = diagnose(LocalBackend(), str(out)).findings
    assert [(each.kind, each.broker, each.member) for each in found] == [
        (each.kind, each.broker, each.member) for each in diagnosis.findings
    ]


@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up_to_random_waits(seed: int, out: Path) -> None:
    """Requests of two partitions, progress of followers, and changes of the in-sync set at random times."""
    random = Random(seed)
    timeline = Timeline(min_isr=random.randint(1, 3))
    ends, reached, ms = [100, 100], {(replica, at): 100 for replica in (2, 3) for at in (0, 1)}, 1.0
    for number in range(300):
        ms += random.choice((0, 0.3, 2, 40))
        place = random.randint(0, 1)
        match random.choice(("produce", "fetch", "replica", "replica", "replica", "isr")):
            case "produce":
                part = {"topic": "orders", "partition": place, "base_offset": ends[place], "bytes": 100}
                ends[place] += random.randint(1, 5)
                timeline.add(
                    ms, "produce", request_id=f"p{number}", client_id="app", acks=-1,
                    timeout_ms=random.choice((0, 30, 500)), partitions=[part | {"last_offset": ends[place] - 1}],
                )  # fmt: skip
            case "fetch":
                offsets = [random.randint(reached[2, at], ends[at]) for at in (0, 1)]
                parts = [
                    {"topic": "orders", "partition": at, "fetch_offset": offset, "max_bytes": 1_000}
                    for at, offset in enumerate(offsets)
                ]
                timeline.add(
                    ms, "fetch", request_id=f"f{number}", client_id="reader", max_wait_ms=random.choice((10, 300)),
                    min_bytes=random.choice((1, 250)), partitions=parts,
                )  # fmt: skip
            case "replica":
                replica = random.choice((2, 3))
                reached[replica, place] = random.randint(reached[replica, place], ends[place])
                timeline.replicated(ms, replica, reached[replica, place], place)
            case "isr":
                timeline.change(ms, "isr", place, isr=random.choice(([1, 2, 3], [1, 2], [1, 3], [1])))
    timeline.blame(out)
    _require_exact_sums(out, least=40)


@pytest.mark.parametrize("folder", ["story_folder", "faults_folder"])
def test_parts_add_up_to_the_wait(folder: str, faults: Diagnosis, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(folder)
    diagnose(LocalBackend(), str(path))
    _require_exact_sums(path, least=1_000)


def _require_exact_sums(out: Path, least: int) -> None:
    """Check that the parts of each operation add up to its wait, and that more than `least` operations waited."""
    tables = RunTables(LocalBackend(), str(out))
    tables.add("blame", "waited")
    (counts,) = tables.database.query(
        "SELECT count(*) AS waited, count_if(coalesce(parts.wait_ms, 0) <> w.wait_ms) AS wrong FROM waited w LEFT JOIN "
        "(SELECT operation_id, sum(wait_ms) AS wait_ms FROM blame GROUP BY operation_id) parts "
        "ON parts.operation_id = w.operation_id"
    ).to_pylist()
    assert counts["waited"] > least
    assert counts["wrong"] == 0


def test_sessions_with_one_key_have_their_own_members() -> None:
    """The key `a-b-c` is of the member `c` of the group `a-b`, and of `b-c` of `a`. The key `g-d` is unique."""
    database = LocalBackend().database()
    events = [
        {"seq": 1, "type": "heartbeat", "group": "a-b", "member_id": "c"},
        {"seq": 2, "type": "heartbeat", "group": "a", "member_id": "b-c"},
        {"seq": 3, "type": "join_group", "group": "g", "member_id": "", "assigned_member_id": "d"},
        {"seq": 4, "type": "join_group", "group": "g", "client_id": "app"},
    ]
    keys = {1: "a-b-c", 2: "a-b-c", 3: "g-d", 4: "g-app", 5: "g-d", 6: "unknown", -1: "a-b-c", -2: "g-d", -3: "unknown"}
    session = {"kind": "heartbeat", "broker": 1, "client_id": "app", "start_us": 0, "end_us": 9}
    waited = [{"operation_id": number, "key": key, **session} for number, key in keys.items()]
    database.add_rows("events", pa.Table.from_pylist(events, schema=TABLES["events"]))
    database.add_rows("waited", pa.Table.from_pylist(waited))
    for view in ("member_keys", "unnamed_sessions", "heartbeat_members"):
        database.add_view(view, sql_file(f"views/{view}").text)
    rows = database.query("SELECT h.operation_id, h.group AS group_id, h.member FROM heartbeat_members h").to_pylist()
    assert {row["operation_id"]: (row["group_id"], row["member"]) for row in rows} == {
        1: ("a-b", "c"),
        2: ("a", "b-c"),
        3: ("g", "d"),
        4: ("g", "app"),
        5: ("g", "d"),
        6: (None, None),
        # Without a request, either member may be meant.
        -1: ("a-b", "c"),
        -2: ("g", "d"),
        -3: (None, None),
    }


def test_long_rebalance_waits_for_members_that_join_late(out: Path) -> None:
    """`a` joins again at 12 s, `b` 3 s and `c` 24 s later."""
    group = GroupTimeline()
    timeouts: dict[str, Any] = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    members = "a", "b", "c"
    for member in members:
        group.join(100, member, **timeouts)
    for member in members:
        group.sync(9_000, member, leader=member == "a")
    for ms, member in ((12_000, "a"), (15_000, "b"), (36_000, "c")):
        group.rejoin(ms, member, **timeouts)
    events = [event | {"time_us": BEGIN_US + event["time_us"], "broker": 1} for event in group.events]
    write_folder(out, [read_row(event) | {"seq": number} for number, event in enumerate(events)])
    diagnose(LocalBackend(), str(out))
    tables = RunTables(LocalBackend(), str(out))
    tables.add("blame")
    parts = tables.database.query(
        "SELECT cause, member_id, wait_ms FROM blame WHERE kind = 'join' ORDER BY started_at"
    ).to_pylist()
    assert [tuple(part.values()) for part in parts] == [
        ("member_joining", "b", 3_000),
        ("member_joining", "c", 21_000),
    ]


def test_first_time_of_an_append_counts_those_at_higher_offsets() -> None:
    """Appends of t-0 are not in the order of their times; those of t-1 are. The log reaches 3 with the append of 5."""
    database = LocalBackend().database()
    produced = [(1, 0, 40, 3), (2, 0, 30, 5), (3, 0, 50, 6), (4, 1, 10, 2), (5, 1, 20, 4)]
    columns = ("operation_id", "partition", "time_us", "reached")
    rows = [dict(zip(columns, row, strict=True)) for row in produced]
    same = {"broker": 1, "topic": "t", "bytes": 9, "is_appended": True}
    # The log end that a produce repeats.
    change = {"seq": 6, "time_us": 20, "type": "partition", "change": "log_end", "offset": 4, "partition": 1}
    events = [change | {"broker": 1, "topic": "t", "bytes": 9}]
    database.add_rows("produced", pa.Table.from_pylist([row | same for row in rows]))
    database.add_rows("events", pa.Table.from_pylist(events, schema=TABLES["events"]))
    found = database.query(sql_file("views/appends").text).to_pylist()
    times = {(row["partition"], row["base"], row["reached"]): (row["time_us"], row["first_us"]) for row in found}
    assert len(found) == len(times)
    assert times == {
        (0, None, 3): (40, 30),
        (0, 3, 5): (30, 30),
        (0, 5, 6): (50, 50),
        (1, None, 2): (10, 10),
        (1, 2, 4): (20, 20),
    }
