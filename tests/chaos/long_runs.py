"""`python -m tests.chaos.long_runs --minutes 60`: measures whether a followed replay or import grows over time.

The events of a trace are written in real time to a table for `replay --follow`, or with `--what import` to a topic of a
real broker for `ingest --from kafka --follow`. Every 30 s, a sample records the memory of its processes, the duration
of batches, the number of files of the tables, the size of the logs to read for them, and the size of checkpoints and
working folders. `maintain` runs every `--maintain` minutes. At the end, the last third is compared with the second one;
a ratio of about 1.0 means no growth. The first third is warm-up.

The last two columns count all files on the disk. Old files and commits are kept for a week, so these columns grow for a
week.
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

from benchmarks.topic import broker_in, create_topic
from tests.chaos.killed_commands import session_processes, start

FEED_INTERVAL_S, NOTE_INTERVAL_S = 5.0, 30.0

Feed = Callable[[int, int], None]


@dataclass(frozen=True)
class Sample:
    """Measurements at one time.

    `batch_ms` is the median of the batches since the previous sample, `table_files` the number of files of the tables'
    newest versions, and `log_kb` the size of the logs to read for them, from the last checkpoints on.
    """

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
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.long_runs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--what", choices=("replay", "import"), default="replay")
    parser.add_argument("--rate", type=int, default=100, help="requests per second")
    parser.add_argument("--batch-bytes", type=int, default=300_000, help="average size of a produced batch")
    parser.add_argument("--grouping", default="broker", help="grouping of the replay: broker, partition or shard")
    parser.add_argument("--maintain", type=float, default=10, metavar="MINUTES", help="interval of maintain; 0: never")
    options = parser.parse_args()
    # Exit on SIGTERM, so that the processes started here are stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="hours-"))
    try:
        trace = simulate_trace(folder, options.rate, options.minutes, options.batch_bytes)
        follow = partial(followed_replay, grouping=options.grouping) if options.what == "replay" else followed_import
        with follow(folder, trace) as (feed, process, out):
            samples = watch(trace, feed, process, out, options.minutes, options.maintain)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(samples)
    return 0


# Upper bound of the events of a request in the open loop.
_EVENTS_PER_REQUEST = 4


@dataclass(frozen=True)
class Trace:
    """Events in time order."""

    table: pa.Table

    def lines(self, first: int, end: int) -> list[str]:
        """Return the events from `first` until just before `end` as JSON Lines."""
        columns = [name for name in self.table.column_names if name not in ("run_id", "event_time", "source", "line")]
        rows = self.table.select(columns).slice(first, end - first).to_pylist()
        return [json.dumps(_without_nulls(row)) for row in rows]

    def until(self, passed_s: float) -> int:
        """Return the number of events in the first `passed_s` seconds."""
        times = self.table["time_us"]
        return int(pc.sum(pc.less(times, times[0].as_py() + int(passed_s * 1e6))).as_py() or 0)


def _without_nulls(value: Any) -> Any:
    """Remove null fields from a JSON value."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def simulate_trace(folder: Path, rate: int, minutes: float, batch_bytes: int) -> Trace:
    """Simulate a trace with the open loop, which is fast; an hour of the closed loop would take half an hour.

    Batches are large, so that the state soon reaches its final size: it remembers `fetch.max_bytes` of each log.
    """
    events = int(minutes * 60 * rate * _EVENTS_PER_REQUEST)
    words = ("--open-loop", "--rate", str(rate), "--events", str(events), "--partitions", "60", "--max-wait-ms", "500")
    out = folder / "simulated"
    _run_to_end(("simulate", *words, "--out", str(out)))
    table = DeltaTable(str(out / "events")).to_pyarrow_table().sort_by([("time_us", "ascending"), ("seq", "ascending")])
    return Trace(_with_batch_bytes(table, batch_bytes))


def _with_batch_bytes(table: pa.Table, batch_bytes: int) -> pa.Table:
    """Scale the sizes of batches to an average of `batch_bytes`."""
    parts = table["partitions"].combine_chunks()
    values = parts.values
    sizes = values.field("bytes")
    larger = pc.cast(pc.multiply(sizes, batch_bytes / pc.mean(sizes).as_py()), pa.int64(), safe=False)
    fields = [larger if field.name == "bytes" else values.field(field.name) for field in values.type]
    scaled = pa.StructArray.from_arrays(fields, fields=list(values.type))
    lists = pa.ListArray.from_arrays(parts.offsets, scaled, type=parts.type, mask=parts.is_null())
    return table.set_column(table.column_names.index("partitions"), "partitions", lists)


@contextmanager
def followed_replay(folder: Path, trace: Trace, grouping: str) -> Iterator[tuple[Feed, subprocess.Popen[bytes], Path]]:
    """Start a followed replay of a growing table; yield the function to feed it, its process and its output folder."""
    events, out = folder / "events", folder / "out"
    write_deltalake(str(events), trace.table.slice(0, 0))

    def feed(first: int, end: int) -> None:
        write_deltalake(str(events), trace.table.slice(first, end - first), mode="append")

    words = ("replay", "--events", str(events), "--follow", "--set", f"grouping={grouping}")
    with _running_command((*words, "--out", str(out))) as process:
        yield feed, process, out


@contextmanager
def followed_import(folder: Path, trace: Trace) -> Iterator[tuple[Feed, subprocess.Popen[bytes], Path]]:
    """Start a broker and a followed import of a topic; yield as `followed_replay` does."""
    out = folder / "out"
    with broker_in(folder / "broker") as bootstrap, create_topic(bootstrap, "events") as events:

        def feed(first: int, end: int) -> None:
            events.send(trace.lines(first, end))

        feed(0, 1)
        words = ("ingest", "--from", "kafka", "--bootstrap", bootstrap, "--topic", "events", "--follow")
        with _running_command((*words, "--out", str(out))) as process:
            yield feed, process, out


def watch(
    trace: Trace, feed: Feed, process: subprocess.Popen[bytes], out: Path, minutes: float, maintain: float
) -> list[Sample]:
    """Feed events in real time and take samples until the time has passed."""
    start_s, fed, sampled, maintained = time.monotonic(), 0, 0.0, 0.0
    samples: list[Sample] = []
    since = time.time()
    print("  ".join(f"{field.name:>12}" for field in fields(Sample)), flush=True)
    while (passed := time.monotonic() - start_s) < minutes * 60:
        if process.poll() is not None:
            raise SystemExit(f"the command exited early with status {process.returncode}")
        now = trace.until(passed)
        if now > fed:
            feed(fed, now)
            fed = now
        if passed - sampled >= NOTE_INTERVAL_S:
            sampled = passed
            samples.append(take_sample(passed / 60, process.pid, out, since))
            since = time.time()
            print("  ".join(f"{value:>12,.1f}" for value in astuple(samples[-1])), flush=True)
        if maintain and passed - maintained >= maintain * 60:
            maintained = passed
            _run_to_end(("maintain", "--out", str(out)))
        time.sleep(FEED_INTERVAL_S)
    return samples


def take_sample(minute: float, session: int, out: Path, since: float) -> Sample:
    """Measure the processes of a session and an output folder; `since` is the time of the previous sample."""
    pages = sum(_resident(pid) for pid in session_processes({session}, lambda words: True))
    files = [file for file in out.rglob("*") if file.is_file()]
    in_log = [file for file in files if "_delta_log" in file.parts]
    tables = {Path(*file.parts[: file.parts.index("_delta_log")]) for file in in_log if file.suffix == ".json"}
    in_checkpoint = [file for file in files if "checkpoint" in str(file.parent.relative_to(out))]
    working = [file for file in files if file.relative_to(out).parts[0] in ("_replay", "_kafka")]
    return Sample(
        minute,
        pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        _median_batch_ms(in_checkpoint, since),
        sum(len(DeltaTable(str(table)).file_uris()) for table in tables),
        sum(_kb(_log_files_to_read(table / "_delta_log")) for table in tables),
        _kb(in_checkpoint),
        _kb(working),
        len(files),
        _kb(in_log),
    )


def _log_files_to_read(log: Path) -> list[Path]:
    """Return the last checkpoint of a Delta log and the commits after it."""
    last = log / "_last_checkpoint"
    begin = json.loads(last.read_text())["version"] if last.exists() else 0
    return [file for file in log.iterdir() if file.name[:20].isdigit() and int(file.name[:20]) >= begin]


def report(samples: list[Sample]) -> None:
    """Print the medians of the second and the last third of the samples, and their ratios."""
    third = len(samples) // 3
    if not third:
        print("too short for a comparison")
        return
    print(f"\n{'':16}{'second third':>14}{'last third':>14}{'ratio':>8}")
    for field in fields(Sample)[1:]:
        before, after = (
            statistics.median(getattr(sample, field.name) for sample in part)
            for part in (samples[third : 2 * third], samples[2 * third :])
        )
        ratio = f"{after / before:8.2f}" if before else "       –"
        print(f"{field.name:16}{before:14,.1f}{after:14,.1f}{ratio}")


@contextmanager
def _running_command(words: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    process = start(words, quiet=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def _run_to_end(words: tuple[str, ...]) -> None:
    process = start(words)
    _, output = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{words[0]}: exit status {process.returncode}:\n{output.decode(errors='replace')}")


def _median_batch_ms(files: list[Path], since: float) -> float:
    """Return the median time between the offsets and the commit of a batch, from the times of the two files."""
    durations = []
    for commit in files:
        offsets = commit.parent.parent / "offsets" / commit.name
        try:
            if commit.parent.name == "commits" and commit.stat().st_mtime >= since:
                durations.append((commit.stat().st_mtime - offsets.stat().st_mtime) * 1000)
        except OSError:
            continue  # removed by a cleanup
    return statistics.median(durations) if durations else 0.0


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
