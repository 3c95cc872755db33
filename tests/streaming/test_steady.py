"""A replay that follows a table which is fed at a steady rate, minute after minute, with `maintain` beside it: nothing
grows, and nothing is lost. (An hour, by the clock, and of an import: `python -m tests.chaos.long_runs`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from jobs.maintain import main as maintain
from purgatory_udf.backend.dialect import locally
from purgatory_udf.common.configuration import Config
from purgatory_udf.launch.spark_session import session_for
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.query_plan import PARTITIONS
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay
from tests.streaming.followed import Event, caught_up, following, rows
from tests.support.delta_lake import commits_to_read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_US = 1_790_000_000_000_000
# So long is the trace, in so many portions, and so often is it maintained.
SECONDS, PORTIONS, EACH = 120, 9, 3
# Much smaller than in clusters: within the first third of the trace, more has been produced than states remember.
CONFIG = Config.model_validate({"drain": False, "grouping": "broker", "fetch": {"max_bytes": 20_000}})


@dataclass(frozen=True)
class Kept:
    """What there is after a portion; `state` is what the brokers' groups remember, in bytes, and `commits` how many
    have to be read, at most, to know what a table consists of."""

    batch_ms: float
    state: int
    files: int
    commits: int
    heap: int


def test_nothing_grows_while_a_trace_goes_on_as_it_did(spark: SparkSession, tmp_path: Path) -> None:
    trace = steady()
    kept = [*followed(spark, tmp_path, trace)]
    first, second, last = (kept[at : at + PORTIONS // 3] for at in range(0, PORTIONS, PORTIONS // 3))
    assert len(first) == len(second) == len(last)
    # Files are put together now and then: how many there are before that is what counts. Of what others' work may make
    # more of, the least.
    of: dict[str, Callable[[list[float]], float]] = {"batch_ms": min, "heap": min}
    grown = {}
    for field in fields(Kept):
        before, after = ([getattr(each, field.name) for each in part] for part in (second, last))
        much = of.get(field.name, max)
        grown[field.name] = much(after) / much(before)
    # Time is that of a machine that does other things, too; the heap is that of all tests before.
    most = {"batch_ms": 2.0, "heap": 1.25, "state": 1.1, "files": 1.1}
    assert {name: grown[name] for name in most if grown[name] > most[name]} == {}, [*map(astuple, kept)]
    # After so many, a log is summed up.
    assert max(each.commits for each in kept) <= 10 < DeltaTable(str(tmp_path / "out/completions")).version()
    assert_whole(tmp_path, trace)


def assert_whole(folder: Path, trace: pa.Table) -> None:
    with locally():
        options = ReplayOptions(str(folder / "events"), str(folder / "whole"), CONFIG)
        run_replay(session_for("tests"), options)
    for name in ("completions", "expirations", "watches", "purgatory_gauges"):
        expected = rows(folder / "whole", name)
        assert len(expected) > 20, name
        assert rows(folder / "out", name) == expected, name


def steady() -> pa.Table:
    """Each second of it alike, at two brokers."""
    events = [event for second in range(SECONDS) for broker in (1, 2) for event in _second(second, broker)]
    events.sort(key=lambda event: event["time_us"])
    return event_table([event | {"event_time": event["time_us"], "seq": seq} for seq, event in enumerate(events)])


def _second(second: int, broker: int) -> Iterator[Event]:
    """A fetch that waits for the batch that comes next, the batch, and what lets it be read: now and then too late."""
    for partition in range(3):
        at_us = START_US + second * 1_000_000 + partition * 1000
        where = {"topic": f"t{broker}", "partition": partition}
        late = partition == 2 and second % 5 == 0
        about = {"broker": broker, "client_id": "client", "request_id": f"{broker}-{partition}-{second}"}
        fetch = about | {"type": "fetch", "max_wait_ms": 400, "min_bytes": 1, "max_bytes": 20_000}
        asked = [where | {"fetch_offset": second, "max_bytes": 10_000}]
        produced = [where | {"base_offset": second, "last_offset": second, "bytes": 900 + second % 200}]
        produce = about | {"type": "produce", "acks": -1, "timeout_ms": 300, "partitions": produced}
        watermark = {"broker": broker, "type": "partition", "change": "high_watermark", **where, "offset": second + 1}
        yield fetch | {"time_us": at_us, "replica_id": -1, "isolation": "read_uncommitted", "partitions": asked}
        yield produce | {"time_us": at_us + 100_000}
        yield watermark | {"time_us": at_us + (700_000 if late else 150_000)}


def followed(spark: SparkSession, folder: Path, trace: pa.Table) -> Iterator[Kept]:
    """What there is after each portion of the trace, `maintain` after every third."""
    events, out = folder / "events", folder / "out"
    cuts = [START_US + SECONDS * 1_000_000 * number // PORTIONS for number in range(PORTIONS + 1)]
    times = trace["time_us"].to_numpy()
    ends = [*times.searchsorted(cuts[:-1]), len(times)]
    write_deltalake(str(events), trace.slice(0, 0))
    portions = [trace.slice(begin, end - begin) for begin, end in pairwise(ends)]
    write_deltalake(str(events), portions[0], mode="append")
    with following(spark, ReplayOptions(str(events), str(out), CONFIG, follow=True)):
        for number, portion in enumerate(portions):
            if number:
                write_deltalake(str(events), portion, mode="append")
            caught_up(spark)
            if number % EACH == EACH - 1:
                with locally():
                    assert maintain.status(["--out", str(out)]) == 0
            yield _kept(spark, Layout(str(out)))


def _kept(spark: SparkSession, layout: Layout) -> Kept:
    (query,) = (query for query in spark.streams.active if query.name == PARTITIONS)
    *_, batch = (batch for batch in query.recentProgress if batch["numInputRows"])
    tables = [log.parent for log in Path(layout.out).glob("*/_delta_log")]
    spark._jvm.System.gc()  # type: ignore[union-attr]
    runtime = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    return Kept(
        batch["durationMs"]["triggerExecution"],
        _newest_state(Path(layout.checkpoint(PARTITIONS))),
        sum(len(DeltaTable(str(table)).file_uris()) for table in tables),
        max(map(commits_to_read, tables)),
        runtime.totalMemory() - runtime.freeMemory(),
    )


def _newest_state(checkpoint: Path) -> int:
    """What was written last by a batch with events, of which all groups had some: all that they remember. (Of a batch
    for timers alone there is next to nothing.)"""
    newest = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()) + 1
    written = [[*(checkpoint / "state").rglob(f"{version}.changelog")] for version in range(newest - 2, newest + 1)]
    return max(sum(file.stat().st_size for file in files) for files in written)
