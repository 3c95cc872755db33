"""What a table's first commit says of it, as Spark reads it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory_udf.backend.local.delta_files import write_files

ROWS = pa.table({"time_us": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


def _known(table: Path, version: int) -> dict[str, object]:
    known: dict[str, object] = json.loads((table / "_delta_log" / f"{version:020}.crc").read_text())
    return known


def test_spark_learns_what_a_table_is_without_a_query_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files([ROWS.slice(0, 2), ROWS.slice(2)], str(tmp_path), ("time_us",), {}, ROWS.schema)
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "the first look")
    try:
        table = spark.read.format("delta").load(str(tmp_path))
        assert table.columns == ["time_us", "name"]
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
        assert sorted(table.collect()) == [(1, "a"), (2, None), (3, "c")]
        # Groups' jobs are told of, so there would have been one.
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) != []
    finally:
        spark.sparkContext.setJobGroup("", "")
    # Spark's own for the next commit is what it finds in ours, and what it adds.
    table.limit(1).coalesce(1).write.format("delta").mode("append").save(str(tmp_path))
    files = list(tmp_path.glob("*.parquet"))
    known = _known(tmp_path, 1)
    assert (known["numFiles"], known["tableSizeBytes"]) == (3, sum(file.stat().st_size for file in files))
    assert {name: _known(tmp_path, 0)[name] for name in ("numMetadata", "numProtocol")} == {
        "numMetadata": 1,
        "numProtocol": 1,
    }
    before, after = _known(tmp_path, 0)["metadata"], known["metadata"]
    assert isinstance(before, dict) and isinstance(after, dict)
    assert (before["id"], before["schemaString"]) == (after["id"], after["schemaString"])
