"""A share group through the commands: what metrics and `explain` say about its fetches and records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from jobs import fidelity, ingest, replay, report, what_if
from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose
from purgatory_udf.answers.explain import Question, explain
from purgatory_udf.answers.metrics import MetricsOptions, summary, write_metrics
from purgatory_udf.answers.prometheus import exposition
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract import read_row
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.rules.engine.partition_engine import event_table
from tests.answers.pages import Page
from tests.support import recorded

Event = dict[str, Any]
PLACE = {"topic": "t", "partition": 0}


def _fetch(at: int, member: str) -> Event:
    request = {"time_us": at * 1000, "type": "share_fetch", "request_id": f"{member}-{at}", "client_id": f"c-{member}"}
    asked = {"max_wait_ms": 500, "min_bytes": 1, "max_records": 20}
    return {**request, "group": "g", "member_id": member, **asked, "partitions": [PLACE]}


def _acknowledge(at: int, member: str, first: int, last: int, kind: int) -> Event:
    acknowledged = {**PLACE, "first_offset": first, "last_offset": last, "types": [kind]}
    request = {"time_us": at * 1000, "type": "share_acknowledge", "request_id": f"{member}-{at}"}
    return {**request, "group": "g", "member_id": member, "acknowledgements": [acknowledged]}


def _change(at: int, change: str, **fields: Any) -> Event:
    return {"time_us": at * 1000, "type": "partition", **PLACE, "change": change, **fields}


# The release wakes no fetch, `b` gets the records at its deadline. The last fetch waits at a broker that has stopped
# leading the partition.
EVENTS = [
    _change(1, "leader", leader_epoch=0, isr=[1]),
    _change(1, "log_end", offset=10, bytes=1000),
    _change(1, "high_watermark", offset=10),
    {"time_us": 2000, "type": "share_group", "group": "g", "auto_offset_reset": "earliest", "delivery_count_limit": 2},
    _fetch(100, "a"),
    _fetch(200, "b"),
    _acknowledge(300, "a", 4, 8, 1),
    _acknowledge(310, "a", 0, 3, 2),
    _acknowledge(800, "b", 0, 2, 1),
    _acknowledge(810, "b", 3, 3, 2),
    _fetch(900, "b"),
    _change(1000, "not_leader"),
    _change(1500, "leader", leader_epoch=2, isr=[1]),
    _fetch(40_000, "b"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _replayed(EVENTS, tmp_path_factory.mktemp("share"))


def _replayed(events: list[Event], folder: Path) -> str:
    numbered = [read_row({"broker": 1, **event, "seq": seq}) for seq, event in enumerate(events)]
    write_deltalake(str(folder / "events"), event_table(numbered))
    assert replay.main.status(["--events", str(folder / "events"), "--out", str(folder)], open_local) == 0
    return str(folder)


def test_worker_that_loses_its_locks_is_found(tmp_path: Path) -> None:
    """The locks last 1 s. Worker a loses them at 1.1, 2.5 and 3.9 s; the last delivery is of one record."""
    settings = {"auto_offset_reset": "earliest", "delivery_count_limit": 3, "record_lock_duration_ms": 1000}
    fetches = [_fetch(at, "a") for at in (100, 1500, 2900)]
    again = [_change(4000, "log_end", offset=12, bytes=100), _change(4000, "high_watermark", offset=12)]
    ended = [*again, _fetch(4100, "b"), _acknowledge(4200, "b", 10, 11, 1)]
    group = {"time_us": 2000, "type": "share_group", "group": "g", **settings}
    (found,) = diagnose(LocalBackend(), _replayed([*EVENTS[:3], group, *fetches, *ended], tmp_path)).findings
    assert (found.kind, found.client_id, found.group, found.operations) == ("share_worker_slow", "c-a", "g", 3)
    assert found.summary.startswith(
        "c-a of share group g held 21 records of 3 fetches until their acquisition locks of"
    )
    assert found.summary.endswith(
        "1 of them were archived after their last delivery, the others became available again."
    )
    assert found.excess_wait_s == 3


def test_wait_for_remote_storage_is_blamed_on_it(tmp_path: Path) -> None:
    """The read of a takes until 250 ms, and that of b is never completed. While b waits, c cannot acquire records."""
    group = {"time_us": 2000, "type": "share_group", "group": "g", "auto_offset_reset": "earliest"}
    read = {"time_us": 250_000, "type": "remote_read", "request_id": "a-100", **PLACE, "bytes": 1000}
    later = [_change(260, "log_end", offset=20, bytes=1000), _change(260, "high_watermark", offset=20)]
    events = [*EVENTS[:3], _change(3, "local_log_start", offset=10), group, _fetch(100, "a"), read, *later]
    events += [_change(270, "local_log_start", offset=20), _fetch(300, "b"), _fetch(400, "c")]
    diagnose(LocalBackend(), _replayed(events, tmp_path))
    tables = RunTables(LocalBackend(), str(tmp_path))
    tables.add("blame")
    blamed = tables.database.query("SELECT operation_id, cause, wait_ms FROM blame ORDER BY 1").to_pylist()
    assert [(row["operation_id"], row["cause"], row["wait_ms"]) for row in blamed] == [
        (5, "remote_storage", 150), (10, "remote_storage", 500), (11, "no_data", 500)
    ]  # fmt: skip


# A record may be delivered three times, and its lock lasts 1 s. The last delivery of a record is made alone. The locks
# of a batch that was acknowledged in part end one by one, so the fetch that waits for them gets only the first record.
LIVES = [
    *EVENTS[:3],
    {
        "time_us": 2000,
        "type": "share_group",
        "group": "g",
        "auto_offset_reset": "earliest",
        "delivery_count_limit": 3,
        "record_lock_duration_ms": 1000,
    },
    _fetch(100, "a"),  # 0 to 9
    _fetch(200, "b"),  # expires at 700, with 0 and 1
    _acknowledge(300, "a", 6, 8, 1),
    _acknowledge(310, "a", 9, 9, 3),
    _acknowledge(320, "a", 0, 1, 2),
    _fetch(1000, "b"),  # waits until the locks of 2 to 5 end at 1100, and gets 2
    _fetch(1120, "b"),  # 3 to 5
    _acknowledge(1150, "b", 0, 1, 1),
    _acknowledge(1200, "b", 4, 5, 2),
    _fetch(1300, "a"),  # 4
    _acknowledge(1400, "a", 4, 4, 1),
    _fetch(1500, "a"),  # 5
    _acknowledge(1600, "a", 5, 5, 2),
    _fetch(2200, "b"),  # 2, because the locks of 2 and 3 ended at 2100 and 2120
    _fetch(2250, "a"),  # 3, whose lock expires at 3250
    {"time_us": 2_300_000, "type": "share_release", "request_id": "b-end", "group": "g", "member_id": "b"},
    _fetch(4000, "a"),  # expires at 4500, without records
    _change(5000, "high_watermark", offset=10),
]


def test_report_shows_waits_redeliveries_and_lock_expirations(tmp_path: Path) -> None:
    out = _replayed(LIVES, tmp_path)
    assert report.main.status(["--out", out], open_local) == 0
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    fetches = {
        "group": "g", "broker": "1", "fetches": "9", "on arrival": "6", "after a wait": "1", "expired": "2",
        "with records": "1", "not woken": "1", "after leader loss": "0", "waited s in all": "1.1",
    }  # fmt: skip
    assert page.table("Share fetches") == [fetches]
    ends = ("delivery", "records", "accepted", "released", "rejected", "lock expired", "session ended", "archived")
    shown = [
        [row[name] for name in (*ends, "mean held ms", "max held ms")]
        for row in page.table("Records delivered to share groups")
    ]
    assert shown == [
        ["3", "4", "1", "1", "0", "1", "1", "3", "325.0", "1,000"],
        ["2", "6", "2", "2", "0", "2", "0", "0", "510.0", "1,000"],
        ["1", "10", "3", "2", "1", "4", "0", "0", "525.0", "1,000"],
    ]
    (meter,) = (row for row in page.table("Kafka's meters") if "DelayedShareFetchMetrics" in row["mbean"])
    assert (meter["broker"], meter["total"]) == ("1", "2")
    title = "share_fetch b-200 of c-b at broker 1 (operation 5): expired after 500 ms"
    told = page.texts[page.texts.index(title) + 1]
    assert "acquired offsets 0 to 1 of t-0 (delivery 2): accepted after 450 ms" in told
    assert "c-a acquired offsets 0 to 1 of t-0 (delivery 1): released after 220 ms" in told


def test_explain_tells_the_life_of_a_record(tmp_path: Path) -> None:
    assert explain(LocalBackend(), _replayed(LIVES, tmp_path), Question(record="g/t-0:2")) == [
        "record 2 of t-0, share group g: 3 deliveries",
        "  00:00:00.100000  c-a (operation 4) acquired offsets 2 to 5 of t-0 (delivery 1): its lock expired after "
        "1,000 ms",
        "  00:00:01.100000  c-b (operation 9) acquired offset 2 of t-0 (delivery 2): its lock expired after 1,000 ms",
        "  00:00:02.200000  c-b (operation 17) acquired offset 2 of t-0 (delivery 3): its member's session ended after "
        "100 ms; archived, because it was the last delivery allowed",
    ]


# Settings of a variant, expired fetches, waits in milliseconds, and records by delivery count.
VARIANTS: dict[str, tuple[str, int, int, dict[int, str]]] = {
    # The records are archived at 2100.
    "limit": ("share.delivery_count_limit=2", 3, 1700, {1: "0-9", 2: "0-9"}),
    # The locks end at 600, 1100 and 1600.
    "lock": ("share.record_lock_duration_ms=500", 0, 600, {1: "0-9", 2: "0-9", 3: "0-2"}),
    # Locks of single offsets: b gets 5 to 9 at 200, then 0 at 1100; c gets 1 to 5, and d 0.
    "records": ("share.max_records=5", 0, 200, {1: "0-9", 2: "0-5", 3: "0-0"}),
    # Both fetches of b expire, c gets the records at 1700, and d the first of them at 2700.
    "wait": ("share.max_wait_ms=100", 2, 250, {1: "0-9", 2: "0-9", 3: "0-0"}),
}


def test_what_if_of_share_settings(tmp_path: Path) -> None:
    """No member acknowledges the ten records, whose locks last 1 s. The third delivery is the last, and made alone.

    As recorded, the fetch of a gets the records at 100, the first fetch of b expires, the second waits from 900 to
    1100 for the records, c waits from 1700 to 2100 for one, and d gets the next one at 2650.
    """
    limits = {"auto_offset_reset": "earliest", "delivery_count_limit": 3, "record_lock_duration_ms": 1000}
    group = {"time_us": 2000, "type": "share_group", "group": "g", **limits}
    arrivals = ((100, "a"), (200, "b"), (900, "b"), (1700, "c"), (2650, "d"))
    fetches = [_fetch(at, member) | {"acquire_mode": 1} for at, member in arrivals]
    out = _replayed([*EVENTS[:3], group, *fetches], tmp_path)
    words = [word for name, (setting, *_) in VARIANTS.items() for word in ("--variant", name, setting)]
    assert what_if.main.status(["--events", f"{out}/events", "--out", out, *words], open_local) == 0
    deliveries = Page((tmp_path / "what-if.html").read_text(encoding="utf-8")).table(
        "Records delivered to share groups"
    )
    names = ("records", "delivered again", "accepted", "lock expired", "archived")
    assert {row["variant"]: [row[name] for name in names] for row in deliveries} == {
        "baseline": ["22", "12", "0", "22", "2"],
        "limit": ["20", "10", "0", "20", "10"],
        "lock": ["23", "13", "0", "23", "3"],
        "records": ["17", "7", "0", "17", "1"],
        "wait": ["21", "11", "0", "21", "1"],
    }
    counts = "SELECT delivery_count, min(first_offset) AS first, max(last_offset) AS last FROM share_deliveries"
    for name, (_, expired, waited_ms, delivered) in VARIANTS.items():
        tables = RunTables(LocalBackend(), f"{out}/_what_if/{name}")
        tables.add("ended", "share_deliveries")
        (ended,) = tables.database.query("SELECT count_if(expired) AS n, sum(wait_ms) AS ms FROM ended").to_pylist()
        rows = tables.database.query(f"{counts} GROUP BY delivery_count").to_pylist()
        ranges = {row["delivery_count"]: f"{row['first']}-{row['last']}" for row in rows}
        assert (name, ended["n"], ended["ms"], ranges) == (name, expired, waited_ms, delivered)


def test_fidelity_compares_recorded_share_fetches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first 10 s of the groups in a recording; `test_share_groups.py` has the reasons for the differences."""
    recording, out = recorded.data_file("traces", "W10-share"), str(tmp_path)
    given = ["--topics", str(recording / "topics.json"), "--isr", str(recording / "cluster-metadata.txt.xz")]
    assert ingest.main.status(["--from", "request-log", str(recording), *given, "--out", out], open_local) == 0
    assert replay.main.status(["--events", f"{out}/events", "--out", out], open_local) == 0
    counters = {"kafka.server:type=DelayedShareFetchMetrics,name=ExpiresPerSec": {"Count": 30, "readAtMs": 2**41}}
    (tmp_path / "jmx.json").write_text(json.dumps({"2": {"mbeans": counters}}), encoding="utf-8")
    log = "[2026-11-25 05:02:52,000] INFO [GroupCoordinator id=2] Starting up. (kafka.server.BrokerServer)\n"
    (tmp_path / "server.log").write_text(log, encoding="utf-8")
    readings = ["--jmx-after", str(tmp_path / "jmx.json"), "--server-log", str(tmp_path / "server.log")]
    capsys.readouterr()
    assert fidelity.main.status(["--out", out, *readings], open_local) == 0
    printed = capsys.readouterr().out
    assert (
        "\n\nNo classic groups to compare: neither the server logs nor the replay show a change of one\n\n" in printed
    )
    tables = RunTables(LocalBackend(), out)
    tables.add("fidelity")
    counts = "SELECT agrees, count(*) AS n FROM fidelity WHERE kind = 'share fetch' GROUP BY agrees"
    assert {row["agrees"]: row["n"] for row in tables.database.query(counts).to_pylist()} == {True: 277, False: 4}
    assert re.search(r"share fetch +2 +29 +28 +30", printed)


def test_metrics_have_fetches_and_deliveries(out: str) -> None:
    metrics = write_metrics(LocalBackend(), out, MetricsOptions())
    (fetches,) = metrics.rows("metrics_command/share_fetches", top=10)
    names = ("operations", "expired", "with_records", "unwoken", "after_leader_loss")
    assert [fetches[name] for name in names] == [4, 2, 1, 1, 1]
    ends = ("records", "accepted", "released", "rejected", "lock_expired", "archived")
    counted = {
        row["delivery_count"]: [row[name] for name in ends] for row in metrics.rows("metrics_command/deliveries", top=9)
    }
    assert counted == {1: [10, 5, 4, 0, 0, 0], 2: [5, 3, 1, 0, 1, 2]}
    assert any(line.startswith("Records delivered to share groups") for line in summary(metrics))
    lines = exposition(metrics).splitlines()
    assert 'kafka_server_delayedsharefetchmetrics_expires_total{broker="1"} 2' in lines
    locks = "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total"
    assert f'{locks}{{broker="1",group="g",topic="t",partition="0"}} 1' in lines
    acknowledged = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
    assert f'{acknowledged}{{broker="1",ackType="Release"}} 5' in lines


def test_explain_tells_what_was_delivered(out: str) -> None:
    story = [line.strip() for line in explain(LocalBackend(), out, Question(request_id="b-200"))]
    assert story[-3:] == [
        "acquired offsets 0 to 2 of t-0 (delivery 2): accepted after 100 ms",
        "acquired offset 3 of t-0 (delivery 2): released after 110 ms; "
        "archived, because it was the last delivery allowed",
        "before, at 00:00:00.100000, c-a acquired offsets 0 to 3 of t-0 (delivery 1): released after 210 ms",
    ]
    life = explain(LocalBackend(), out, Question(record="g/t-0:3"))
    assert life[0] == "record 3 of t-0, share group g: 2 deliveries"
    with pytest.raises(UserError, match="no ended delivery of record g/t-0:99 found"):
        explain(LocalBackend(), out, Question(record="g/t-0:99"))
    with pytest.raises(UserError, match="expected GROUP/TOPIC-PARTITION:OFFSET"):
        Question(record="t-0")
