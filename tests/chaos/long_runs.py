"""`python -m tests.chaos.long_runs --minutes 60`: does memory grow while a replay or an import follows?

A trace's events are fed as fast as they happened, to a table that `replay --follow` follows, or (`--what import`) to a
topic of a real broker that `ingest --from kafka --follow` follows. Each half minute is noted: the memory of all its
processes, how long its batches took, of how many files the tables consist, how much of their logs is read for that, how
large checkpoints and working folders are. Every `--maintain` minutes `maintain` is run beside it. At the end the last
third is held against the second: what is flat stays about 1.0. (The first third warms up.)

The last two columns are what lies on the disk in all. Files of former versions and commits stay for a week, so these
grow for a week, and then stay too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks.topic import broker_of, topic
from tests.chaos.killing import at_work, start

FEED_EVERY_S, NOTE_EVERY_S = 5.0, 30.0

Feed = Callable[[int, int], None]


@dataclass(frozen=True)
class Note:
    """What there is at one moment; `batch_ms` is the median of the batches since the note before. `table_files`: of the
    tables' newest versions; `log_kb`: what is read to know these, from each one's last checkpoint on."""

    minute: float
    memory_mb: float
    batch_ms: float
    table_files: int
    log_kb: float
    checkpoint_kb: float
    work_kb: float
    disk_files: int
    disk_log_kb: float


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.chaos.long_runs", description=(__doc__ or "").split("\n")[0]
    )
    options.add_argument("--minutes", type=float, default=60)
    options.add_argument("--what", choices=("replay", "import"), default="replay")
    options.add_argument("--rate", type=int, default=100, help="requests a second")
    options.add_argument("--batch-bytes", type=int, default=300_000, help="of what is produced at once, on average")
    options.add_argument("--grouping", default="broker", help="of the replay: broker, partition or shard")
    options.add_argument("--maintain", type=float, default=10, metavar="MINUTES", help="how often; 0: never")
    asked = options.parse_args()
    # Whoever is asked to end takes what it has started along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="hours-"))
    try:
        trace = simulated(folder, asked.rate, asked.minutes, asked.batch_bytes)
        follow = partial(followed_replay, grouping=asked.grouping) if asked.what == "replay" else followed_import
        with follow(folder, trace) as (feed, running, out):
            notes = watch(trace, feed, running, out, asked.minutes, asked.maintain)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(notes)
    return 0


# Of which a request of the open loop has fewer.
_EVENTS_A_REQUEST = 4


@dataclass(frozen=True)
class Trace:
    """Events in order."""

    table: pa.Table

    def lines(self, first: int, end: int) -> list[str]:
        """These events as JSON Lines."""
        columns = [name for name in self.table.column_names if name not in ("run_id", "event_time", "source", "line")]
        rows = self.table.select(columns).slice(first, end - first).to_pylist()
        return [json.dumps(_without_nulls(row)) for row in rows]

    def until(self, passed_s: float) -> int:
        """How many events have happened by then."""
        times = self.table["time_us"]
        return int(pc.sum(pc.less(times, times[0].as_py() + int(passed_s * 1e6))).as_py() or 0)


def _without_nulls(value: Any) -> Any:
    """Without what is not there."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def simulated(folder: Path, rate: int, minutes: float, batch_bytes: int) -> Trace:
    """Made in the time that it takes to start: an hour of clients that react takes half an hour. Batches are so large
    that a state soon remembers as much of a log as it ever does: what lies less than `fetch.max_bytes` behind."""
    events = int(minutes * 60 * rate * _EVENTS_A_REQUEST)
    words = ("--open-loop", "--rate", str(rate), "--events", str(events), "--partitions", "60", "--max-wait-ms", "500")
    out = folder / "simulated"
    _done(("simulate", *words, "--out", str(out)))
    table = DeltaTable(str(out / "events")).to_pyarrow_table().sort_by([("time_us", "ascending"), ("seq", "ascending")])
    return Trace(_with_batches_of(table, batch_bytes))


def _with_batches_of(table: pa.Table, batch_bytes: int) -> pa.Table:
    """The same batches, each so many times as large that this is their average."""
    parts = table["partitions"].combine_chunks()
    named = parts.values
    sizes = named.field("bytes")
    larger = pc.cast(pc.multiply(sizes, batch_bytes / pc.mean(sizes).as_py()), pa.int64(), safe=False)
    fields = [larger if field.name == "bytes" else named.field(field.name) for field in named.type]
    made = pa.StructArray.from_arrays(fields, fields=list(named.type))
    lists = pa.ListArray.from_arrays(parts.offsets, made, type=parts.type, mask=parts.is_null())
    return table.set_column(table.column_names.index("partitions"), "partitions", lists)


@contextmanager
def followed_replay(folder: Path, trace: Trace, grouping: str) -> Iterator[tuple[Feed, subprocess.Popen[bytes], Path]]:
    events, out = folder / "events", folder / "out"
    write_deltalake(str(events), trace.table.slice(0, 0))

    def feed(first: int, end: int) -> None:
        write_deltalake(str(events), trace.table.slice(first, end - first), mode="append")

    words = ("replay", "--events", str(events), "--follow", "--set", f"grouping={grouping}")
    with _running((*words, "--out", str(out))) as running:
        yield feed, running, out


@contextmanager
def followed_import(folder: Path, trace: Trace) -> Iterator[tuple[Feed, subprocess.Popen[bytes], Path]]:
    out = folder / "out"
    with broker_of(folder / "broker") as bootstrap, topic(bootstrap, "events") as events:

        def feed(first: int, end: int) -> None:
            events.send(trace.lines(first, end))

        feed(0, 1)
        words = ("ingest", "--from", "kafka", "--bootstrap", bootstrap, "--topic", "events", "--follow")
        with _running((*words, "--out", str(out))) as running:
            yield feed, running, out


def watch(
    trace: Trace, feed: Feed, running: subprocess.Popen[bytes], out: Path, minutes: float, maintain: float
) -> list[Note]:
    """Feed what has happened by now, and note what there is, until the time is over."""
    began, fed, noted, maintained = time.monotonic(), 0, 0.0, 0.0
    notes: list[Note] = []
    since = time.time()
    print("  ".join(f"{field.name:>12}" for field in fields(Note)), flush=True)
    while (passed := time.monotonic() - began) < minutes * 60:
        if running.poll() is not None:
            raise SystemExit(f"it ended by itself with {running.returncode}")
        now = trace.until(passed)
        if now > fed:
            feed(fed, now)
            fed = now
        if passed - noted >= NOTE_EVERY_S:
            noted = passed
            notes.append(note(passed / 60, running.pid, out, since))
            since = time.time()
            print("  ".join(f"{value:>12,.1f}" for value in astuple(notes[-1])), flush=True)
        if maintain and passed - maintained >= maintain * 60:
            maintained = passed
            _done(("maintain", "--out", str(out)))
        time.sleep(FEED_EVERY_S)
    return notes


def note(minute: float, session: int, out: Path, since: float) -> Note:
    pages = sum(_resident(pid) for pid in at_work({session}, lambda words: True))
    files = [file for file in out.rglob("*") if file.is_file()]
    in_log = [file for file in files if "_delta_log" in file.parts]
    tables = {Path(*file.parts[: file.parts.index("_delta_log")]) for file in in_log if file.suffix == ".json"}
    in_checkpoint = [file for file in files if "checkpoint" in str(file.parent.relative_to(out))]
    working = [file for file in files if file.relative_to(out).parts[0] in ("_replay", "_kafka")]
    return Note(
        minute,
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        _median_batch_ms(in_checkpoint, since),
        sum(len(DeltaTable(str(table)).file_uris()) for table in tables),
        sum(_kb(_read_of(table / "_delta_log")) for table in tables),
        _kb(in_checkpoint),
        _kb(working),
        len(files),
        _kb(in_log),
    )


def _read_of(log: Path) -> list[Path]:
    """The last checkpoint, and the commits since then."""
    last = log / "_last_checkpoint"
    begin = json.loads(last.read_text())["version"] if last.exists() else 0
    return [file for file in log.iterdir() if file.name[:20].isdigit() and int(file.name[:20]) >= begin]


def report(notes: list[Note]) -> None:
    third = len(notes) // 3
    if not third:
        print("too short to tell")
        return
    print(f"\n{'':16}{'second third':>14}{'last third':>14}{'ratio':>8}")
    for field in fields(Note)[1:]:
        before, after = (
            statistics.median(getattr(sample, field.name) for sample in part)
            for part in (notes[third : 2 * third], notes[2 * third :])
        )
        ratio = f"{after / before:8.2f}" if before else "       –"
        print(f"{field.name:16}{before:14,.1f}{after:14,.1f}{ratio}")


@contextmanager
def _running(words: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    running = start(words, quiet=True)
    try:
        yield running
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGTERM)
        running.communicate()


def _done(words: tuple[str, ...]) -> None:
    asked = start(words)
    _, said = asked.communicate()
    if asked.returncode != 0:
        raise SystemExit(f"{words[0]} ended with {asked.returncode}:\n{said.decode(errors='replace')}")


def _median_batch_ms(files: list[Path], since: float) -> float:
    """From what a batch is about to do to what it has done, by the times of both files."""
    took = []
    for commit in files:
        offsets = commit.parent.parent / "offsets" / commit.name
        try:
            if commit.parent.name == "commits" and commit.stat().st_mtime >= since:
                took.append((commit.stat().st_mtime - offsets.stat().st_mtime) * 1000)
        except OSError:
            continue  # cleaned away meanwhile
    return statistics.median(took) if took else 0.0


def _kb(files: list[Path]) -> float:
    total = 0
    for file in files:
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total / 1000


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
