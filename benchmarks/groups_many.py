"""10,000 consumer groups of 3 to 50 members, replayed in several variants, which must write the same tables.

    python -m benchmarks.groups_many --work /tmp/groups

It prints the time of each variant, and exits with status 1 if a table differs. A variant is GROUPING:EVENTS_PER_BATCH.
With `:kill`, the replay and all its children are killed (SIGKILL) after two committed batches, and it is run again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from benchmarks import saved_figures
from benchmarks.groups_trace import groups_trace
from benchmarks.saved_figures import Figures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
TABLES = ("completions", "expirations", "group_transitions", "group_disagreements", "purgatory_gauges")
VARIANTS = ("shard:500000", "partition:1000000:kill")


def main() -> int:
    """Replay all variants and compare their tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, required=True, help="folder for the trace and the tables")
    options.add_argument("--groups", type=int, default=10_000)
    options.add_argument("--seconds", type=int, default=45, help="length of the trace, in seconds [default: 45]")
    options.add_argument("--memory", default="4g", help="memory of the Spark driver [default: 4g]")
    options.add_argument("--reuse", action="store_true", help="skip variants that have written their tables")
    saved_figures.add_options(options)
    options.add_argument("variants", nargs="*", default=VARIANTS, metavar="VARIANT")
    given = options.parse_args()
    from purgatory_udf.launch.spark_session import build_session

    spark = build_session("groups-many", {"spark.driver.memory": given.memory})
    events = _write_trace(spark, given.work, given.groups, given.seconds)
    digests, figures = [], Figures()
    for variant in given.variants:
        out = given.work / variant.replace(":", "-")
        reused = given.reuse and (out / TABLES[-1]).is_dir()
        seconds = 0.0 if reused else _replay(variant, given.work / "events", out, given.memory)
        if not reused:
            figures[variant] = {"seconds": seconds, "events_per_s": events / seconds}
        digests.append({name: _digest(spark, out / name) for name in TABLES})
        print(
            f"{variant}: " + ("reused" if reused else f"{seconds:,.0f} s, {events / seconds:,.0f} events/s"), flush=True
        )
        print("  " + ", ".join(f"{name} {rows:,}" for name, (rows, _) in digests[-1].items()), flush=True)
    same = all(digest == digests[0] for digest in digests)
    print("all tables are equal" if same else "TABLES DIFFER")
    saved_figures.finish(figures, given, ("events_per_s",))
    return 0 if same else 1


def _write_trace(spark: SparkSession, work: Path, groups: int, seconds: int) -> int:
    from purgatory_udf.storage.event_staging import write_in_time_order

    began = time.monotonic()
    trace = groups_trace(groups, seconds)
    count = trace.events.num_rows
    if not (work / "events" / "_delta_log").is_dir():
        raw = work / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for place, at in enumerate(range(0, count, 500_000)):
            pq.write_table(trace.events.slice(at, 500_000), raw / f"{place:04}.parquet")
        write_in_time_order(spark.read.parquet(str(raw)), str(work / "events"), count, 100_000)
        shutil.rmtree(raw)
    seconds_taken = time.monotonic() - began
    print(
        f"{groups:,} groups, {trace.members:,} members, {count:,} events, written in {seconds_taken:,.0f} s", flush=True
    )
    return count


def _replay(variant: str, events: Path, out: Path, memory: str) -> float:
    """Replay a variant, and return how many seconds it took. With `:kill`, those before the kill are included."""
    grouping, per_batch, *kill = variant.split(":")
    shutil.rmtree(out, ignore_errors=True)
    command = [
        *(
            str(ROOT / "spark-submit.sh"),
            "--driver-memory",
            memory,
            "replay",
            "--events",
            str(events),
            "--out",
            str(out),
        ),
        *("--set", f"grouping={grouping}", "--batch-events", per_batch),
    ]
    began = time.monotonic()
    if kill:
        _kill_after_two_batches(command, out / "_replay" / "checkpoints" / "groups" / "commits" / "1")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _kill_after_two_batches(command: list[str], commit: Path) -> None:
    """Start the command, and kill it with all its children as soon as the commit file of the second batch exists."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while not commit.exists():
        if process.poll() is not None:
            raise SystemExit("the replay finished before its second batch was committed: use fewer events per batch")
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    print("killed; running it again", flush=True)


def _digest(spark: SparkSession, path: Path) -> tuple[int, int]:
    """Return the number of rows, and a checksum of them that does not depend on their order."""
    from pyspark.sql import functions as sf

    table = spark.read.format("delta").load(str(path)).drop("run_id")
    row = table.agg(
        sf.count("*").alias("rows"), sf.sum(sf.xxhash64(*table.columns).cast("decimal(38,0)")).alias("sum")
    ).first()
    assert row is not None
    return row.rows, int(row["sum"] or 0)


if __name__ == "__main__":
    sys.exit(main())
