"""Events on their way from groups that see a share of some operations to their brokers' groups: a table between two
queries, of which nobody needs what the second has taken.

Each batch of the first query is a commit, in a partition of its own, named by the latest millisecond in it. Batches
come in the order of time; so all partitions before the watermark of a batch that the second query has done went
through it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
from delta.tables import DeltaTable

from purgatory_udf.query import local
from purgatory_udf.storage import delta
from purgatory_udf.storage.files import files_of
from purgatory_udf.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNTIL = "until_ms"
# Whose checkpoint tells what was taken.
BEHIND = "brokers"


def create(spark: SparkSession, layout: Layout, packed: pa.Schema) -> None:
    """The empty table, unless it is there."""
    delta.create(spark, layout.relay, packed.append(pa.field(UNTIL, pa.int64())), (UNTIL,))


def clean(spark: SparkSession, layout: Layout) -> int:
    """Take away what was taken, also while both queries run; how many batches of the first that was."""
    if not delta.is_table(spark, layout.relay):
        return 0
    done_ms = _done_ms(spark, layout)
    batches = (name for name in files_of(spark).names(layout.relay) if name.startswith(f"{UNTIL}="))
    gone = [name for name in batches if _until(name) < done_ms]
    if gone:
        # First for whoever reads the table, then for the disk: a reader takes no file that the table had lost before.
        _delete(spark, layout.relay, f"{UNTIL} < {done_ms}")
    for name in gone:
        files_of(spark).remove(f"{layout.relay}/{name}")
    return len(gone)


def _delete(spark: SparkSession, path: str, which: str) -> None:
    """Whole partitions, of which no row has to be read."""
    here = local(spark)
    if here:
        here.delete(path, which)
    else:
        DeltaTable.forPath(spark, path).delete(which)


def _until(folder: str) -> int:
    return int(folder.removeprefix(f"{UNTIL}="))


def _done_ms(spark: SparkSession, layout: Layout) -> int:
    """The watermark with which the second query began the last batch that it has done; 0 before there is one."""
    checkpoint = layout.checkpoint(BEHIND)
    done = [int(name) for name in files_of(spark).names(f"{checkpoint}/commits") if name.isdigit()]
    said = files_of(spark).read(f"{checkpoint}/offsets/{max(done)}") if done else None
    # A version, what holds for the batch, then the offset of each source.
    return int(json.loads(said.decode().splitlines()[1])["batchWatermarkMs"]) if said else 0
