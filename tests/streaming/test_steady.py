"""A replay that follows a table with a steady rate of events, while `maintain` runs: state, files and time do not grow.

`python -m tests.chaos.long_runs` does the same for an hour, also with an import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.maintain import main as maintain
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from purgatory_udf.streaming.streaming_query import PARTITIONS
from tests.streaming.growing_table import Event, process_all_available, replay_in_thread, sorted_rows
from tests.support.delta_lake import commits_to_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

START_US = 1_790_000_000_000_000
SECONDS, PORTIONS = 120, 9
# `maintain` runs after every third portion.
PORTIONS_PER_MAINTAIN = 3
# The maximum of a fetch limits how much of a log the state keeps; it is reached in the first third of the trace.
CONFIG = Config.model_validate({"drain": False, "grouping": "broker", "fetch": {"max_bytes": 20_000}})


@dataclass(frozen=True)
class Usage:
    """Use of resources after a portion.

    Attributes:
        batch_ms: Time of the last batch.
        state: Bytes of the brokers' state.
        files: Number of files in the tables.
        commits: Maximum number of commits to read for the current version of a table.
        heap: Bytes of the JVM's heap that are in use.
    """

    batch_ms: float
    state: int
    files: int
    commits: int
    heap: int


@pytest.mark.nightly
def test_steady_trace_uses_constant_resources(spark: SparkSession, tmp_path: Path) -> None:
    trace = steady()
    usage = [*follow(spark, tmp_path, trace)]
    first, second, last = (usage[at : at + PORTIONS // 3] for at in range(0, PORTIONS, PORTIONS // 3))
    assert len(first) == len(second) == len(last)
    # Other processes and tests may increase time and heap, so their minimum counts. The number of files counts before
    # they are compacted, at its maximum.
    of: dict[str, Callable[[list[float]], float]] = {"batch_ms": min, "heap": min}
    grown = {}
    for field in fields(Usage):
        before, after = ([getattr(each, field.name) for each in part] for part in (second, last))
        typical = of.get(field.name, max)
        grown[field.name] = typical(after) / typical(before)
    # Time depends on other processes, the heap on earlier tests.
    most = {"batch_ms": 2.0, "heap": 1.25, "state": 1.1, "files": 1.1}
    assert {name: grown[name] for name in most if grown[name] > most[name]} == {}, [*map(astuple, usage)]
    # Delta writes a checkpoint of the log every ten commits.
    assert max(each.commits for each in usage) <= 10 < DeltaTable(str(tmp_path / "out/completions")).version()
    assert_whole(tmp_path, trace)


def assert_whole(folder: Path, trace: pa.Table) -> None:
    options = ReplayOptions(str(folder / "events"), str(folder / "whole"), CONFIG)
    run_replay(LocalBackend(), options)
    for name in ("completions", "expirations", "watches", "purgatory_gauges"):
        expected = sorted_rows(folder / "whole", name)
        assert len(expected) > 20, name
        assert sorted_rows(folder / "out", name) == expected, name


def steady() -> pa.Table:
    """Return a trace of two brokers that repeats every second."""
    events = [event for second in range(SECONDS) for broker in (1, 2) for event in _second(second, broker)]
    events.sort(key=lambda event: event["time_us"])
    return event_table([event | {"event_time": event["time_us"], "seq": seq} for seq, event in enumerate(events)])


def _second(second: int, broker: int) -> Iterator[Event]:
    """Yield a waiting fetch, a produce, and the high watermark that completes both, every fifth second too late."""
    for partition in range(3):
        at_us = START_US + second * 1_000_000 + partition * 1000
        where = {"topic": f"t{broker}", "partition": partition}
        late = partition == 2 and second % 5 == 0
        about = {"broker": broker, "client_id": "client", "request_id": f"{broker}-{partition}-{second}"}
        fetch = about | {"type": "fetch", "max_wait_ms": 400, "min_bytes": 1, "max_bytes": 20_000}
        fetched = [where | {"fetch_offset": second, "max_bytes": 10_000}]
        produced = [where | {"base_offset": second, "last_offset": second, "bytes": 900 + second % 200}]
        produce = about | {"type": "produce", "acks": -1, "timeout_ms": 300, "partitions": produced}
        watermark = {"broker": broker, "type": "partition", "change": "high_watermark", **where, "offset": second + 1}
        yield fetch | {"time_us": at_us, "replica_id": -1, "isolation": "read_uncommitted", "partitions": fetched}
        yield produce | {"time_us": at_us + 100_000}
        yield watermark | {"time_us": at_us + (700_000 if late else 150_000)}


def follow(spark: SparkSession, folder: Path, trace: pa.Table) -> Iterator[Usage]:
    """Follow the trace portion by portion and yield the use of resources after each."""
    events, out = folder / "events", folder / "out"
    cuts = [START_US + SECONDS * 1_000_000 * number // PORTIONS for number in range(PORTIONS + 1)]
    times = trace["time_us"].to_numpy()
    ends = [*times.searchsorted(cuts[:-1]), len(times)]
    write_deltalake(str(events), trace.slice(0, 0))
    portions = [trace.slice(begin, end - begin) for begin, end in pairwise(ends)]
    write_deltalake(str(events), portions[0], mode="append")
    with replay_in_thread(spark, ReplayOptions(str(events), str(out), CONFIG, follow=True)):
        for number, portion in enumerate(portions):
            if number:
                write_deltalake(str(events), portion, mode="append")
            process_all_available(spark)
            if number % PORTIONS_PER_MAINTAIN == PORTIONS_PER_MAINTAIN - 1:
                assert maintain.status(["--out", str(out)], open_local) == 0
            yield _usage(spark, Layout(str(out)))


def _usage(spark: SparkSession, layout: Layout) -> Usage:
    (query,) = (query for query in spark.streams.active if query.name == PARTITIONS)
    *_, batch = (batch for batch in query.recentProgress if batch["numInputRows"])
    tables = [log.parent for log in Path(layout.out).glob("*/_delta_log")]
    spark._jvm.System.gc()  # type: ignore[union-attr]
    runtime = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    return Usage(
        batch["durationMs"]["triggerExecution"],
        _newest_state(Path(layout.checkpoint(PARTITIONS))),
        sum(len(DeltaTable(str(table)).file_uris()) for table in tables),
        max(map(commits_to_read, tables)),
        runtime.totalMemory() - runtime.freeMemory(),
    )


def _newest_state(checkpoint: Path) -> int:
    """Return the size of the changelogs of the last batch with events, in which every group has written its state.

    A batch in which only timeouts fire writes almost nothing.
    """
    newest = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()) + 1
    written = [[*(checkpoint / "state").rglob(f"{version}.changelog")] for version in range(newest - 2, newest + 1)]
    return max(sum(file.stat().st_size for file in files) for files in written)
