"""Commands to kill, with small traces, so that a kill costs little more than another start."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from benchmarks.topic import Topic, broker_in, create_topic
from purgatory_udf.contract.metrics_tables import METRICS
from tests.chaos.killed_commands import ROOT, Command, run_to_end
from tests.support.group_timeline import GroupTimeline
from tests.support.share_timeline import error_timeline

SAMPLE = ROOT / "conf" / "sample" / "trace.jsonl"
RECORDED = ROOT / "tests" / "data" / "traces" / "W1-steady" / "request-1.log.xz"
LINES = 1_500
# Events of the sample: enough for all ways in which an operation completes, and for two batches.
EVENTS, BATCH = 600, 300
PORTIONS = 3

OUTCOMES = (
    *("completions", "expirations", "cancellations", "watches"),
    *("purgatory_gauges", "group_transitions", "group_disagreements", "share_deliveries"),
)

# Start of the trace with share groups, and settings with which its requests differ in how they end.
START_US = 1_700_000_000_000_000
SHARE_SETTINGS = ("--set", "share.max_sessions=4", "--set", "share.record_lock_duration_ms=1000")


def commands(folder: Path) -> dict[str, Command]:
    """Return the commands by name; their input files are written to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, with_group, log = folder / "plain.jsonl", folder / "with-group.jsonl", folder / "request-1.log"
    shares = folder / "shares.jsonl"
    sample = SAMPLE.read_text(encoding="utf-8").splitlines()[:EVENTS]
    if not log.exists():  # Rewritten files would count as another trace.
        plain.write_text("\n".join(sample) + "\n", encoding="utf-8")
        with_group.write_text("\n".join(_with_group(sample)) + "\n", encoding="utf-8")
        late = (event | {"time_us": event["time_us"] + START_US} for event in error_timeline().events)
        shares.write_text("".join(f"{json.dumps(event)}\n" for event in late), encoding="utf-8")
        with lzma.open(RECORDED, "rb") as lines:
            log.write_bytes(b"".join(islice(lines, LINES)))
    tables = ("events", "rejected_events", *OUTCOMES)
    batches = ("--batch-events", str(BATCH))
    disorder = ("--max-disorder-ms", "50", "--no-drain")
    growing = GrowingTable(folder)

    def replay(name: str, trace: Path, *words: str, spark_optional: bool = False) -> Command:
        return Command(
            name, ("replay", "--trace", str(trace), *words), tables, audited=True, spark_optional=spark_optional
        )

    all_commands = (
        replay("replay at once", plain, "--set", "grouping=broker", spark_optional=True),
        replay("replay at once with groups", with_group, "--set", "grouping=broker", spark_optional=True),
        replay("replay at once by partition, with groups", with_group, "--set", "grouping=partition"),
        replay("replay", plain, *batches, "--set", "grouping=broker"),
        replay("replay with groups", with_group, *batches, "--set", "grouping=broker"),
        replay("replay by partition", with_group, *batches, "--set", "grouping=partition"),
        replay("replay with disorder", with_group, *batches, *disorder, "--set", "grouping=broker"),
        replay("replay at once with share groups", shares, *SHARE_SETTINGS, spark_optional=True),
        replay("replay with share groups", shares, "--batch-events", "60", *SHARE_SETTINGS),
        Command(
            "ingest", ("ingest", "--from", "jsonl", str(plain)), ("events", "rejected_events"), spark_optional=True
        ),
        Command(
            "ingest of a request log",
            ("ingest", "--from", "request-log", str(log), "--max-rejected", "100"),
            ("events", "rejected_events", "recorded"),
            spark_optional=True,
        ),
        Command(
            "replay --follow",
            (
                "replay",
                "--events",
                str(growing.table),
                "--follow",
                "--set",
                "grouping=shard",
                "--set",
                "grouping_shards=2",
            ),
            OUTCOMES,
            follows=True,
            feed=growing.append_portion,
            prepare_input=lambda: growing.create(with_group),
        ),
    )
    return {command.name: command for command in all_commands}


def local_commands(folder: Path) -> dict[str, Command]:
    """Return commands without Spark by name: the small ones, and jobs that write metrics or reports."""
    local = [replace(command, without_spark=True) for command in commands(folder).values() if command.spark_optional]
    replayed, recorded = folder / "replayed", folder / "recorded"
    answers = (
        Command("metrics", ("metrics",), tuple(METRICS), prepare_output=partial(shutil.copytree, replayed)),
        Command("report", ("report",), (), files=("report.html",), prepare_output=partial(shutil.copytree, replayed)),
        Command("fidelity", ("fidelity",), ("fidelity",), prepare_output=partial(shutil.copytree, recorded)),
    )
    by_name = {command.name: command for command in local}
    if not recorded.exists():
        run_to_end(by_name["replay at once with groups"], replayed)
        run_to_end(by_name["ingest of a request log"], recorded)
        words = ("replay", "--events", str(recorded / "events"))
        run_to_end(Command("replay of a request log", words, (), without_spark=True), recorded)
    return by_name | {command.name: replace(command, spark_optional=True, without_spark=True) for command in answers}


@contextmanager
def topic_commands(folder: Path) -> Iterator[dict[str, Command]]:
    """Start a broker, and yield imports that follow its topics, by name."""
    known = commands(folder)
    lines = (folder / "plain.jsonl").read_text(encoding="utf-8").splitlines()
    log = (folder / "request-1.log").read_text(encoding="utf-8").splitlines()
    with (
        broker_in(folder / "broker") as bootstrap,
        create_topic(bootstrap, "events") as events,
        create_topic(bootstrap, "log") as log_topic,
    ):
        words = ("ingest", "--from", "kafka", "--bootstrap", bootstrap, "--follow", "--topic")
        as_log = ("--messages", "request-log", "--hold-ms", "500")
        tables, and_recorded = known["ingest"].tables, known["ingest of a request log"].tables
        followed = (
            _following_import("ingest --follow of events", events, lines, tables, (*words, "events")),
            _following_import(
                "ingest --follow of a request log", log_topic, log, and_recorded, (*words, "log", *as_log)
            ),
        )
        yield {command.name: command for command in followed}


def _following_import(
    name: str, topic: Topic, lines: list[str], tables: tuple[str, ...], words: tuple[str, ...]
) -> Command:
    portions = [lines[at : at + -(-len(lines) // PORTIONS)] for at in range(0, len(lines), -(-len(lines) // PORTIONS))]

    def send_portion() -> bool:
        if not portions:
            return False
        topic.send(portions.pop(0))
        return True

    def prepare() -> None:
        send_portion()

    return Command(name, words, tables, follows=True, feed=send_portion, prepare_input=prepare)


class GrowingTable:
    """A table of events that grows by one portion at a time."""

    def __init__(self, folder: Path) -> None:
        self._whole, self.table = folder / "given" / "events", folder / "growing" / "events"

    def create(self, trace: Path) -> None:
        """Write the first portion, unless the table exists."""
        if not self._whole.exists():
            words = ("ingest", "--from", "jsonl", str(trace))
            run_to_end(Command("given", words, ()), self._whole.parent)
        if not self.table.exists():
            self.append_portion()

    def append_portion(self) -> bool:
        """Append the next portion; return False after the last one."""
        rows = DeltaTable(str(self._whole)).to_pyarrow_table().sort_by([("time_us", "ascending"), ("seq", "ascending")])
        done = DeltaTable(str(self.table)).to_pyarrow_table().num_rows if self.table.exists() else 0
        portion = rows.slice(done, -(-rows.num_rows // PORTIONS))
        if portion.num_rows:
            write_deltalake(str(self.table), portion, mode="append")
        return portion.num_rows > 0


def _with_group(sample: list[str]) -> Iterator[str]:
    """Yield the sample with two members of a group, one of which stops its heartbeats."""
    group = GroupTimeline()
    for ms, member in ((100, "a"), (200, "b")):
        group.join(ms, member, session_timeout_ms=6_000)
    for ms, member in ((3_300, "a"), (3_310, "b")):
        group.sync(ms, member, leader=member == "a")
    for ms in range(4_000, 12_000, 2_000):
        group.heartbeat(ms, "a")
    events: list[dict[str, Any]] = list(map(json.loads, sample))
    start_us = events[0]["time_us"]
    events += [event | {"time_us": start_us + event["time_us"], "broker": 1} for event in group.events]
    for event in sorted(events, key=lambda event: event["time_us"]):
        yield json.dumps({name: value for name, value in event.items() if name != "seq"})
