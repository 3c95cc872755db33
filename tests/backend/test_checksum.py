"""The checksum file of a table's first commit, as Spark reads it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from purgatory_udf.backend.local_delta import create_with_files

ROWS = pa.table({"time_us": pa.array([1, 2, 3], pa.int64()), "name": ["a", None, "c"]})


def _checksum(table: Path, version: int) -> dict[str, object]:
    checksum: dict[str, object] = json.loads((table / "_delta_log" / f"{version:020}.crc").read_text())
    return checksum


def test_spark_reads_checksum_without_job(spark: SparkSession, tmp_path: Path) -> None:
    """It needs no job to load the table, and continues the checksum in its next commit."""
    create_with_files([ROWS.slice(0, 2), ROWS.slice(2)], str(tmp_path), ("time_us",), {}, ROWS.schema)
    group = str(uuid.uuid4())
    spark.sparkContext.setJobGroup(group, "load")
    try:
        table = spark.read.format("delta").load(str(tmp_path))
        assert table.columns == ["time_us", "name"]
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
        assert sorted(table.collect()) == [(1, "a"), (2, None), (3, "c")]
        # Jobs of the group are reported, so the list above would have had one.
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) != []
    finally:
        spark.sparkContext.setJobGroup("", "")
    # Spark adds its own file to the numbers of the first commit.
    table.limit(1).coalesce(1).write.format("delta").mode("append").save(str(tmp_path))
    files = list(tmp_path.glob("*.parquet"))
    known = _checksum(tmp_path, 1)
    assert (known["numFiles"], known["tableSizeBytes"]) == (3, sum(file.stat().st_size for file in files))
    assert {name: _checksum(tmp_path, 0)[name] for name in ("numMetadata", "numProtocol")} == {
        "numMetadata": 1,
        "numProtocol": 1,
    }
    before, after = _checksum(tmp_path, 0)["metadata"], known["metadata"]
    assert isinstance(before, dict) and isinstance(after, dict)
    assert (before["id"], before["schemaString"]) == (after["id"], after["schemaString"])
