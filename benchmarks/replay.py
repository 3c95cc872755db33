"""A whole replay in Spark against its floor.

The floor streams the same events in the same batches through a Python function that does nothing, and writes the same
outcome tables once: by Spark, and in a second measurement by this process.

    python -m benchmarks.replay                                     # 100,000 operations, 1,000 partitions, by broker
    python -m benchmarks.replay --partitions 10000 --grouping broker shard partition
    python -m benchmarks.replay --sizes 600000 3000000              # open loop, fetches of four partitions
    python -m benchmarks.replay --events out/events                 # another trace
    python -m benchmarks.replay --json now.json --compare before.json

Runs of floors and replays are interleaved in one Spark session after a warm-up. Medians and their ratios are compared,
as absolute times of one machine mean little on another. CPU seconds are those of this process, the JVM and the Python
workers. Of two traces, the difference per million events is reported as well: what does not grow with the trace cancels
out. Stages are reported as in the progress of Spark's batches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.listener import StreamingQueryListener

from benchmarks import saved_figures
from benchmarks.partition_trace import Shape, partition_trace
from benchmarks.saved_figures import Figures
from purgatory_udf.backend.backend import SparkBackend
from purgatory_udf.common.configuration import load_config
from purgatory_udf.common.secrets import read_properties
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.rules.engine.calls_from_events import READ_COLUMNS
from purgatory_udf.simulation.open_loop.event_rows import events_of, write_events
from purgatory_udf.simulation.open_loop.workload import Workload
from purgatory_udf.storage.event_staging import content_version, stage_events, write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.event_source import delta_stream
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
ROW_COUNT = pa.schema([("rows", pa.int64())])
# Rows of a row group: small enough that all cores share the work on a table.
ROWS_PER_TASK = 100_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the replays and print the report."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--operations", type=int, default=100_000, help="operations of the generated trace [default: 100000]"
    )
    options.add_argument(
        "--partitions", type=int, default=1_000, help="partitions of the generated trace [default: 1000]"
    )
    options.add_argument("--events", nargs="+", default=[], help="tables of events instead of the generated trace")
    options.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        default=[],
        help="numbers of events of traces of the open loop to measure instead",
    )
    options.add_argument("--grouping", nargs="+", default=["broker"], help="groupings to measure [default: broker]")
    options.add_argument("--batch-events", type=int, default=500_000, help="events per micro-batch [default: 500000]")
    options.add_argument("--runs", type=int, default=3, help="runs of each; medians are compared [default: 3]")
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    from purgatory_udf.launch.spark_session import build_session

    spark = build_session("benchmark-replay", local_spark_settings())
    stages = Stages()
    spark.streams.addListener(stages)
    with tempfile.TemporaryDirectory() as folder:
        events = given.events or [write_open_loop(spark, Path(folder), size, given.partitions) for size in given.sizes]
        events = events or [write_trace(spark, Path(folder), Shape(given.operations, keys=given.partitions))]
        figures = measure(spark, stages, Path(folder), events, given.grouping, given.batch_events, given.runs)
    for line in report(figures):
        print(line, flush=True)
    saved_figures.finish(figures, given)


def local_spark_settings() -> dict[str, str]:
    """Return the settings that `./spark-submit.sh` gives a replay before the JVM starts."""
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    return read_properties(ROOT / "conf" / "spark-local.conf")


@dataclass(frozen=True)
class Spent:
    """Seconds, and CPU seconds of this process and its descendants."""

    wall: float
    cpu: float

    @staticmethod
    def now() -> Spent:
        return Spent(time.monotonic(), tree_cpu_seconds(os.getpid()))

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)


def tree_cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its running and former descendants (Linux only)."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            children[int(fields[1])].append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children[pid]
    return total / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Floor:
    """What the stream took, the tables written by Spark, and the tables written by this process."""

    streamed: Spent
    spark_wrote: Spent
    process_wrote: Spent

    @property
    def by_spark(self) -> Spent:
        return self.streamed + self.spark_wrote

    @property
    def by_process(self) -> Spent:
        return self.streamed + self.process_wrote


class Stages(StreamingQueryListener):
    """Sums the durations of stages of Spark's queries, in milliseconds by query and stage, since the last `take`."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.spent["queries"] += 1

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        self.spent["batches"] += 1
        self.spent.update({f"{progress.name}: {stage}": ms for stage, ms in progress.durationMs.items()})

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass

    def take(self) -> dict[str, int]:
        taken, self.spent = dict(self.spent), Counter()
        return taken


def measure(
    spark: SparkSession,
    stages: Stages,
    folder: Path,
    traces: Sequence[str],
    groupings: Sequence[str],
    batch: int,
    runs: int,
) -> Figures:
    """Measure floors and replays in interleaved runs.

    Args:
        spark: The Spark session.
        stages: Spark listener that collects the durations of stages.
        folder: Folder for the tables.
        traces: Folders of events.
        groupings: Values of `grouping` to measure.
        batch: Approximate number of events in a micro-batch.
        runs: Number of runs of each.
    """
    counts = [spark.read.format("delta").load(events).count() for events in traces]
    written = []
    for number, events in enumerate(traces):
        for grouping in groupings:
            timed_replay(spark, folder / f"warm-{number}-{grouping}", events, grouping, batch)
        written.append(export_outcomes(folder / f"warm-{number}-{groupings[0]}", folder / f"written-{number}"))
    _measure_floor(spark, folder / "floor-warm", traces[0], counts[0], batch, written[0])
    spent = [_Measured(defaultdict(list)) for _ in traces]
    for run in range(runs):
        for number, (events, count, files, each) in enumerate(zip(traces, counts, written, spent, strict=True)):
            floor = _measure_floor(spark, folder / f"floor-{number}-{run}", events, count, batch, files)
            each.taken["floor"].append(floor.by_spark)
            each.taken["floor by this process"].append(floor.by_process)
            stages.take()
            for grouping in groupings:
                began, out = Spent.now(), folder / f"{number}-{grouping}-{run}"
                timed_replay(spark, out, events, grouping, batch)
                each.taken[grouping].append(Spent.now() - began)
                each.stages[grouping] = stages.take()
                shutil.rmtree(out)
    figures: Figures = {
        f"{count:,} events": {
            "rows": {name: pq.read_metadata(file).num_rows for name, file in files.items()},
            **each.figures(groupings),
        }
        for count, files, each in zip(counts, written, spent, strict=True)
    }
    for number in range(1, len(traces)):
        grown = spent[number].since(spent[0], (counts[number] - counts[0]) / 1e6)
        figures[f"each of {counts[number] - counts[0]:,} more events, times a million"] = grown.figures(groupings)
    return figures


@dataclass(frozen=True)
class _Measured:
    """What runs took, by grouping and of the floors, and the stages of the last run of a grouping."""

    taken: dict[str, list[Spent]]
    stages: dict[str, dict[str, int]] = field(default_factory=dict)

    def since(self, smaller: _Measured, millions: float) -> _Measured:
        """Return what a run took more than the run of a smaller trace, per million events."""
        grown = {
            name: [
                Spent((more.wall - less.wall) / millions, (more.cpu - less.cpu) / millions)
                for more, less in zip(each, smaller.taken[name], strict=True)
            ]
            for name, each in self.taken.items()
        }
        return _Measured(defaultdict(list, grown))

    def figures(self, groupings: Sequence[str]) -> Figures:
        """Return medians, and ratios of the groupings to the floors."""
        medians = {
            name: Spent(statistics.median(run.wall for run in each), statistics.median(run.cpu for run in each))
            for name, each in self.taken.items()
        }
        floor, process = medians["floor"], medians["floor by this process"]
        return {
            "floor": asdict(floor),
            "floor by this process": asdict(process),
            **{
                f"by {grouping}": {
                    **asdict(medians[grouping]),
                    "ratio": medians[grouping].wall / floor.wall,
                    "cpu ratio": medians[grouping].cpu / floor.cpu,
                    "ratio by process": medians[grouping].wall / process.wall,
                    "cpu ratio by process": medians[grouping].cpu / process.cpu,
                    "runs": [asdict(run) for run in self.taken[grouping]],
                    "stages_ms": self.stages.get(grouping, {}),
                }
                for grouping in groupings
            },
        }


def report(figures: Figures) -> Iterator[str]:
    """Yield the lines of the report."""
    for title, each in figures.items():
        yield title + "".join(f"; {count:,} {name}" for name, count in each.get("rows", {}).items())
        for name in ("floor", "floor by this process"):
            yield f"  {name}: {each[name]['wall']:.1f} s, CPU {each[name]['cpu']:.1f} s"
        for name, runs in each.items():
            if not name.startswith("by "):
                continue
            yield (
                f"  {name}: {runs['wall']:.1f} s, CPU {runs['cpu']:.1f} s; x the floor {runs['ratio']:.2f}, "
                f"CPU {runs['cpu ratio']:.2f}; if this process writes {runs['ratio by process']:.2f}, "
                f"CPU {runs['cpu ratio by process']:.2f}"
            )
            for stage, ms in sorted(runs["stages_ms"].items()):
                yield f"      {stage}: {ms:,}"


def write_open_loop(spark: SparkSession, folder: Path, events: int, partitions: int) -> str:
    """Write a trace of the open loop with fetches of four partitions and without groups; return its path."""
    path = str(folder / f"open-loop-{events}")
    workload = Workload(events, partitions=partitions, rate=20_000, keys=4, group_share=0)
    write_events(events_of(spark, workload, "benchmark"), path)
    return path


def write_trace(spark: SparkSession, folder: Path, shape: Shape) -> str:
    """Write a generated trace as a table of events; return its path."""
    trace = partition_trace(shape)
    pq.write_table(trace, folder / "trace.parquet")
    write_in_time_order(spark.read.parquet(str(folder / "trace.parquet")), str(folder / "events"), len(trace), 50_000)
    return str(folder / "events")


def export_outcomes(out: Path, folder: Path) -> dict[str, str]:
    """Write a replay's tables to Parquet files for the floor, and return the path of each file by its table's name.

    They are files because rows in the driver's memory would limit the floor, but not the replay.
    """
    folder.mkdir()
    files = {}
    for name in (*ENDS, "watches"):
        table = DeltaTable(str(out / name)).to_pyarrow_table()
        # A replay does not write empty tables.
        if len(table):
            files[name] = str(folder / f"{name}.parquet")
            pq.write_table(table, files[name], row_group_size=ROWS_PER_TASK)
    return files


def timed_replay(spark: SparkSession, out: Path, events: str, grouping: str, batch: int) -> float:
    """Replay `events` with this grouping and this number of events per batch, and return the seconds that it took."""
    began = time.monotonic()
    run_replay(
        spark, ReplayOptions(events, str(out), load_config(None, [f"grouping={grouping}", f"batch_events={batch}"]))
    )
    return time.monotonic() - began


def _count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consume the rows: the function of the floor's `mapInArrow`."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], schema=ROW_COUNT)


def _measure_floor(
    spark: SparkSession, out: Path, events: str, count: int, batch: int, written: dict[str, str]
) -> Floor:
    """Measure the floor once: stream the events through a function that does nothing, then write the tables.

    Args:
        spark: The Spark session.
        out: Folder of the tables.
        events: Folder of the events.
        count: Number of the events.
        batch: Approximate number of events in a micro-batch.
        written: The Parquet file of each table to write, by name.
    """
    began = Spent.now()
    backend = SparkBackend(spark)
    files = backend.delta(events).identity(events).files
    source, per_batch = stage_events(backend, events, Layout(str(out)), count, files, batch)
    stream = delta_stream(spark, source, per_batch, content_version(spark, source)).select(*READ_COLUMNS)
    query = (
        stream.mapInArrow(_count_rows, from_arrow_schema(ROW_COUNT))
        .writeStream.format("delta")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / "nothing"))
    )
    query.awaitTermination()
    streamed = Spent.now()
    for name, file in written.items():
        spark.read.parquet(file).write.format("delta").save(str(out / name))
    spark_wrote = Spent.now()
    for name, file in written.items():
        rows = pq.ParquetFile(file)
        batches = pa.RecordBatchReader.from_batches(rows.schema_arrow, rows.iter_batches(ROWS_PER_TASK))
        write_deltalake(str(out / "by-process" / name), batches)
    process_wrote = Spent.now()
    shutil.rmtree(out)
    return Floor(streamed - began, spark_wrote - streamed, process_wrote - spark_wrote)


if __name__ == "__main__":
    main()
