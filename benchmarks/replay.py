"""A whole replay against its floor: the same events as a stream, in the same batches, through a Python function that
does nothing, and the same outcome tables written once, by Spark; beside it, what it is if this process writes them.

    python -m benchmarks.replay                                     # 100,000 operations, 1,000 partitions, by broker
    python -m benchmarks.replay --partitions 10000 --grouping broker shard partition
    python -m benchmarks.replay --events out/events                 # somebody else's trace
    python -m benchmarks.replay --json now.json --compare before.json

Floor and replays take turns in one Spark session, after one of each that is not counted; medians and their ratio are
what counts, and no number of one machine says anything of another. Stages are what Spark says of its batches.
"""

from __future__ import annotations

import argparse
import json
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

from benchmarks.partition_trace import Shape, partition_trace
from purgatory_udf.common.configuration import load_config
from purgatory_udf.common.secrets import read_properties
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.rules.engine.columns.explode import READ_COLUMNS
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.event_staging import staged, write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.event_source import delta_stream
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
NOTHING = pa.schema([("rows", pa.int64())])
# So that each core has some of the smallest table that is worth it.
ROWS_OF_A_TASK = 100_000

Figures = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--operations", type=int, default=100_000, help="of the made trace")
    options.add_argument("--partitions", type=int, default=1_000, help="of the made trace")
    options.add_argument("--events", help="a table of events instead of the made trace")
    options.add_argument("--grouping", nargs="+", default=["broker"], help="broker, shard, partition: each is measured")
    options.add_argument("--batch-events", type=int, default=500_000)
    options.add_argument("--runs", type=int, default=3, help="of each; medians are compared")
    options.add_argument("--json", help="write the figures to this file")
    options.add_argument("--compare", help="figures of an earlier run: is the ratio to the floor better or worse?")
    asked = options.parse_args(arguments)
    from purgatory_udf.launch.spark_session import build_session

    spark = build_session("benchmark-replay", launched())
    stages = Stages()
    spark.streams.addListener(stages)
    with tempfile.TemporaryDirectory() as folder:
        events = asked.events or made(spark, Path(folder), Shape(asked.operations, keys=asked.partitions))
        figures = measured(spark, stages, Path(folder), events, asked.grouping, asked.batch_events, asked.runs)
    for line in report(figures, json.loads(Path(asked.compare).read_text()) if asked.compare else {}):
        print(line, flush=True)
    if asked.json:
        Path(asked.json).write_text(json.dumps(figures, indent=1) + "\n")


def launched() -> dict[str, str]:
    """What a replay by ./spark-submit.sh has by itself, before the JVM begins."""
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    return read_properties(ROOT / "conf" / "spark-local.conf")


@dataclass(frozen=True)
class Floor:
    """Seconds of its parts: the stream, the tables by Spark, the tables by this process."""

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
    """Milliseconds of every stage of every batch, by query, since they were last taken."""

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


def measured(
    spark: SparkSession, stages: Stages, folder: Path, events: str, groupings: Sequence[str], batch: int, runs: int
) -> Figures:
    count = spark.read.format("delta").load(events).count()
    for grouping in groupings:
        replayed(spark, folder / f"warm-{grouping}", events, grouping, batch)
    written = kept(folder / f"warm-{groupings[0]}", folder / "written")
    _floor(spark, folder / "floor-warm", events, count, batch, written)
    stages.take()
    floors: list[Floor] = []
    replays: dict[str, list[float]] = {grouping: [] for grouping in groupings}
    spent: dict[str, dict[str, int]] = {}
    for run in range(runs):
        floors.append(_floor(spark, folder / f"floor-{run}", events, count, batch, written))
        stages.take()
        for grouping in groupings:
            replays[grouping].append(replayed(spark, folder / f"{grouping}-{run}", events, grouping, batch))
            spent[grouping] = stages.take()
    floor, here = (statistics.median(each) for each in ([f.by_spark for f in floors], [f.by_process for f in floors]))
    return {
        "events": count,
        "rows": {name: pq.read_metadata(file).num_rows for name, file in written.items()},
        "floor_seconds": [each.by_spark for each in floors],
        "floor_by_process_seconds": [each.by_process for each in floors],
        "replays": {
            grouping: {
                "seconds": taken,
                "ratio": statistics.median(taken) / floor,
                "ratio_by_process": statistics.median(taken) / here,
                "stages_ms": spent[grouping],
            }
            for grouping, taken in replays.items()
        },
    }


def report(figures: Figures, before: Figures) -> Iterator[str]:
    floor = statistics.median(figures["floor_seconds"])
    rows = ", ".join(f"{count:,} {name}" for name, count in figures["rows"].items())
    yield f"{figures['events']:,} events; {rows}"
    here = statistics.median(figures["floor_by_process_seconds"])
    yield f"floor: {floor:.1f} s (median of {len(figures['floor_seconds'])}); {here:.1f} s if this process writes"
    for grouping, runs in figures["replays"].items():
        earlier = before.get("replays", {}).get(grouping)
        beside = f"; {earlier['ratio']:.2f} in the run compared with" if earlier else ""
        seconds, ratio, other = statistics.median(runs["seconds"]), runs["ratio"], runs["ratio_by_process"]
        yield f"by {grouping}: {seconds:.1f} s, {ratio:.2f} times the floor{beside} ({other:.2f} if so)"
        for stage, ms in sorted(runs["stages_ms"].items()):
            yield f"    {stage}: {ms:,}"


def made(spark: SparkSession, folder: Path, shape: Shape) -> str:
    trace = partition_trace(shape)
    pq.write_table(trace, folder / "trace.parquet")
    write_in_time_order(spark.read.parquet(str(folder / "trace.parquet")), str(folder / "events"), len(trace), 50_000)
    return str(folder / "events")


def kept(out: Path, folder: Path) -> dict[str, str]:
    """The rows of a replay's tables, each as a file for the floor to write a table of. They lie on the disk, for rows
    that a driver holds would be the floor's limit, not a replay's."""
    folder.mkdir()
    files = {}
    for name in (*ENDS, "watches"):
        table = DeltaTable(str(out / name)).to_pyarrow_table()
        # No floor has to write what there is nothing of.
        if len(table):
            files[name] = str(folder / f"{name}.parquet")
            pq.write_table(table, files[name], row_group_size=ROWS_OF_A_TASK)
    return files


def replayed(spark: SparkSession, out: Path, events: str, grouping: str, batch: int) -> float:
    began = time.monotonic()
    run_replay(
        spark, ReplayOptions(events, str(out), load_config(None, [f"grouping={grouping}", f"batch_events={batch}"]))
    )
    return time.monotonic() - began


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow` that only takes rows in."""
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], schema=NOTHING)


def _floor(spark: SparkSession, out: Path, events: str, count: int, batch: int, written: dict[str, str]) -> Floor:
    began = time.monotonic()
    source, files = staged(spark, events, Layout(str(out)), count, batch)
    stream = delta_stream(spark, source, files, delta_tables.began(spark, source)).select(*READ_COLUMNS)
    query = (
        stream.mapInArrow(_nothing, from_arrow_schema(NOTHING))
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
        batches = pa.RecordBatchReader.from_batches(rows.schema_arrow, rows.iter_batches(ROWS_OF_A_TASK))
        write_deltalake(str(out / "here" / name), batches)
    return Floor(streamed - began, spark_wrote - streamed, time.monotonic() - spark_wrote)


if __name__ == "__main__":
    main()
