"""A whole replay in Spark against its floor.

The floor streams the same events in the same batches through a Python function that does nothing, and writes the same
outcome tables once: by Spark, and in a second measurement by this process.

    python -m benchmarks.replay                                     # 100,000 operations, 1,000 partitions, by broker
    python -m benchmarks.replay --partitions 10000 --grouping broker shard partition
    python -m benchmarks.replay --events out/events                 # another trace
    python -m benchmarks.replay --json now.json --compare before.json

Runs of floors and replays are interleaved in one Spark session after a warm-up. Medians and their ratios are compared,
as absolute times of one machine mean little on another. Stages are reported as in the progress of Spark's batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    options.add_argument("--events", help="table of events instead of the generated trace")
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
        events = given.events or write_trace(spark, Path(folder), Shape(given.operations, keys=given.partitions))
        figures = measure(spark, stages, Path(folder), events, given.grouping, given.batch_events, given.runs)
    for line in report(figures):
        print(line, flush=True)
    saved_figures.finish(figures, given)


def local_spark_settings() -> dict[str, str]:
    """Return the settings that `./spark-submit.sh` gives a replay before the JVM starts."""
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    return read_properties(ROOT / "conf" / "spark-local.conf")


@dataclass(frozen=True)
class Floor:
    """Seconds of the stream, of the tables written by Spark, and of the tables written by this process."""

    streamed: float
    spark_wrote: float
    process_wrote: float

    @property
    def by_spark(self) -> float:
        return self.streamed + self.spark_wrote

    @property
    def by_process(self) -> float:
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
    spark: SparkSession, stages: Stages, folder: Path, events: str, groupings: Sequence[str], batch: int, runs: int
) -> Figures:
    """Measure floors and replays in interleaved runs.

    Args:
        spark: The Spark session.
        stages: Spark listener that collects the durations of stages.
        folder: Folder for the tables.
        events: Folder of the events.
        groupings: Values of `grouping` to measure.
        batch: Approximate number of events in a micro-batch.
        runs: Number of runs of each.
    """
    count = spark.read.format("delta").load(events).count()
    for grouping in groupings:
        timed_replay(spark, folder / f"warm-{grouping}", events, grouping, batch)
    written = export_outcomes(folder / f"warm-{groupings[0]}", folder / "written")
    _measure_floor(spark, folder / "floor-warm", events, count, batch, written)
    stages.take()
    floors: list[Floor] = []
    replays: dict[str, list[float]] = {grouping: [] for grouping in groupings}
    spent: dict[str, dict[str, int]] = {}
    for run in range(runs):
        floors.append(_measure_floor(spark, folder / f"floor-{run}", events, count, batch, written))
        stages.take()
        for grouping in groupings:
            replays[grouping].append(timed_replay(spark, folder / f"{grouping}-{run}", events, grouping, batch))
            spent[grouping] = stages.take()
    floor, by_process = (
        statistics.median(each) for each in ([f.by_spark for f in floors], [f.by_process for f in floors])
    )
    return {
        "events": count,
        "rows": {name: pq.read_metadata(file).num_rows for name, file in written.items()},
        "floor_seconds": [each.by_spark for each in floors],
        "floor_by_process_seconds": [each.by_process for each in floors],
        "replays": {
            grouping: {
                "seconds": taken,
                "ratio": statistics.median(taken) / floor,
                "ratio_by_process": statistics.median(taken) / by_process,
                "stages_ms": spent[grouping],
            }
            for grouping, taken in replays.items()
        },
    }


def report(figures: Figures) -> Iterator[str]:
    """Yield the lines of the report."""
    floor = statistics.median(figures["floor_seconds"])
    rows = ", ".join(f"{count:,} {name}" for name, count in figures["rows"].items())
    yield f"{figures['events']:,} events; {rows}"
    by_process = statistics.median(figures["floor_by_process_seconds"])
    yield f"floor: {floor:.1f} s (median of {len(figures['floor_seconds'])}); {by_process:.1f} s if this process writes"
    for grouping, runs in figures["replays"].items():
        seconds, ratio, other = statistics.median(runs["seconds"]), runs["ratio"], runs["ratio_by_process"]
        yield f"by {grouping}: {seconds:.1f} s, {ratio:.2f} x the floor; {other:.2f} x that of this process"
        for stage, ms in sorted(runs["stages_ms"].items()):
            yield f"    {stage}: {ms:,}"


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
    began = time.monotonic()
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
    streamed = time.monotonic()
    for name, file in written.items():
        spark.read.parquet(file).write.format("delta").save(str(out / name))
    spark_wrote = time.monotonic()
    for name, file in written.items():
        rows = pq.ParquetFile(file)
        batches = pa.RecordBatchReader.from_batches(rows.schema_arrow, rows.iter_batches(ROWS_PER_TASK))
        write_deltalake(str(out / "by-process" / name), batches)
    return Floor(streamed - began, spark_wrote - streamed, time.monotonic() - spark_wrote)


if __name__ == "__main__":
    main()
