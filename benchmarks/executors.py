"""A replay on standalone clusters of one, two or more executors, which must write the same numbers of rows.

    python -m benchmarks.executors
    python -m benchmarks.executors --events 3000000 --executors 1 2 4 --grouping broker shard --json now.json

Each cluster runs on this machine, and each of its executors has one core. The trace is that of the open loop, with
fetches of four partitions. A first replay starts Spark's workers and is not counted. The clusters take turns, as only
one runs at a time.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable

from benchmarks import saved_figures
from benchmarks.costs import executor_cluster
from benchmarks.replay import local_spark_settings, timed_replay, write_open_loop
from benchmarks.saved_figures import Figures
from purgatory_udf.contract.tables import ENDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the clusters and print one line each; return 1 if numbers of rows differ."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=1_000_000, help="events of the trace [default: 1000000]")
    options.add_argument("--partitions", type=int, default=1_000, help="partitions of the trace [default: 1000]")
    options.add_argument("--executors", nargs="+", type=int, default=[1, 2], help="sizes of clusters [default: 1 2]")
    options.add_argument("--grouping", nargs="+", default=["shard"], help="groupings to measure [default: shard]")
    options.add_argument("--batch-events", type=int, default=250_000, help="events per micro-batch [default: 250000]")
    options.add_argument("--runs", type=int, default=2, help="runs of each; medians are compared [default: 2]")
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    from purgatory_udf.launch.spark_session import build_session

    taken: dict[tuple[str, int], list[float]] = defaultdict(list)
    rows: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = build_session("benchmark-executors", local_spark_settings())
        events = write_open_loop(spark, folder, given.events, given.partitions)
        spark.stop()
        for turn in range(given.runs):
            for executors in given.executors:
                place = folder / f"cluster-{turn}-{executors}"
                place.mkdir()
                with executor_cluster(place, executors) as settings:
                    spark = build_session("benchmark-executors", settings)
                    timed_replay(spark, place / "warm", events, given.grouping[0], given.batch_events)
                    for grouping in given.grouping:
                        out = place / grouping
                        taken[grouping, executors].append(
                            timed_replay(spark, out, events, grouping, given.batch_events)
                        )
                        rows[grouping][executors] = count_rows(out)
                    spark.stop()
                shutil.rmtree(place)
    figures: Figures = {}
    for (grouping, executors), seconds in taken.items():
        median, smallest = statistics.median(seconds), statistics.median(taken[grouping, given.executors[0]])
        figures[f"by {grouping}, executors: {executors}"] = {"seconds": median, "ratio": median / smallest}
        print(
            f"by {grouping}, executors: {executors}: {median:.1f} s, x {median / smallest:.2f} of "
            f"{given.executors[0]}; rows {rows[grouping][executors]}",
            flush=True,
        )
    saved_figures.finish(figures, given)
    return 0 if all(len(set(map(str, each.values()))) == 1 for each in rows.values()) else 1


def count_rows(out: Path) -> dict[str, int]:
    """Return the number of rows of each table of a replay; a table without rows is not written."""
    tables = [str(out / name) for name in (*ENDS, "watches") if (out / name).is_dir()]
    return {Path(table).name: DeltaTable(table).to_pyarrow_dataset().count_rows() for table in tables}


if __name__ == "__main__":
    sys.exit(main())
