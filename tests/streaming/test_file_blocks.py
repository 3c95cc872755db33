"""Python workers read the files of events that Spark only counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from purgatory_udf.backend.backend import SparkBackend
from purgatory_udf.backend.local_delta import plain_schema
from purgatory_udf.streaming import event_source
from purgatory_udf.streaming.event_source import TraceSource, read_blocks

SCHEMA = pa.schema([("seq", pa.int64()), ("type", pa.string()), ("broker", pa.int32())])
NAME = "a b%25,c é#?+.parquet"
ROWS_PER_GROUP = 10


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of five row groups, written without the column `broker`."""
    rows = pa.table({"seq": range(50), "type": [f"type {number}" for number in range(50)]}, SCHEMA.remove(2))
    pq.write_table(rows, tmp_path / NAME, row_group_size=ROWS_PER_GROUP)
    return tmp_path / NAME


def counted(file: Path, start: int, rows: int) -> pa.RecordBatch:
    """Return what Spark passes for the rows of a block."""
    uri = f"file://{quote(str(file))}"
    return pa.record_batch({"file": pa.repeat(uri, rows), "start": pa.array([start] * rows, pa.int64())})


def seqs(*batches: pa.RecordBatch) -> list[list[int]]:
    return [table["seq"].to_pylist() for table in read_blocks(batches, SCHEMA, ["seq"])]


def middles(file: Path) -> list[int]:
    """Return the position of the middle of each row group."""
    groups = [pq.read_metadata(file).row_group(number) for number in range(5)]
    columns = [[group.column(number) for number in range(group.num_columns)] for group in groups]
    begins = [each[0].dictionary_page_offset for each in columns]
    sizes = [sum(column.total_compressed_size for column in each) for each in columns]
    return [begin + size // 2 for begin, size in zip(begins, sizes, strict=True)]


def test_missing_column_is_null(file: Path) -> None:
    (rows,) = read_blocks([counted(file, 0, 50)], SCHEMA, ["broker", "type"])
    assert rows.schema == pa.schema([SCHEMA.field("broker"), SCHEMA.field("type")])
    assert rows.to_pylist() == [{"broker": None, "type": f"type {number}"} for number in range(50)]


def test_block_has_row_groups_by_their_middle(file: Path) -> None:
    for group, middle in enumerate(middles(file)):
        rest = 50 - ROWS_PER_GROUP * group
        assert seqs(counted(file, middle, rest)) == [list(range(50 - rest, 50))]
        assert seqs(counted(file, middle, ROWS_PER_GROUP)) == [list(range(50 - rest, 50 - rest + ROWS_PER_GROUP))]
        if rest > ROWS_PER_GROUP:
            following = list(range(50 - rest + ROWS_PER_GROUP, 50))
            assert seqs(counted(file, middle + 1, rest - ROWS_PER_GROUP)) == [following]


def test_blocks_are_recognised_across_batches(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"seq": range(100, 103)}), other)
    first, rest = counted(file, 0, 20), counted(file, middles(file)[3], 20)
    batches = [first[:7], first[7:7], pa.concat_batches([first[7:], counted(other, 0, 3), rest[:5]]), rest[5:]]
    assert seqs(*batches) == [[*range(20), 100, 101, 102, *range(30, 50)]]
    assert seqs() == []


def test_tables_have_limited_size(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "_ROWS_PER_TABLE", 20)
    block = counted(file, 0, 50)
    assert seqs(block, counted(file, middles(file)[4], 10)) == [[*range(20)], [*range(20, 40)], [*range(40, 50)] * 2]


@pytest.mark.parametrize("rows", [15, 60])
def test_other_number_of_rows_is_an_error(file: Path, rows: int) -> None:
    found = 20 if rows == 15 else 50
    error = f"c é#\\?\\+.parquet: Spark reads {rows} rows from byte 0 on, and the row groups have {found}$"
    with pytest.raises(OSError, match=error):
        seqs(counted(file, 0, rows))


def test_only_plain_local_tables_have_a_file_schema(tmp_path: Path) -> None:
    rows = pa.table({"seq": [1], "type": ["fetch"], "broker": [1]}, SCHEMA)
    write_deltalake(str(tmp_path / "plain"), rows)
    write_deltalake(str(tmp_path / "partitioned"), rows, partition_by=["type"])
    write_deltalake(str(tmp_path / "renamed"), rows, configuration={"delta.columnMapping.mode": "name"})
    assert plain_schema(str(tmp_path / "plain")) == SCHEMA
    assert plain_schema(str(tmp_path / "partitioned")) is None
    assert plain_schema(str(tmp_path / "renamed")) is None
    assert plain_schema(str(tmp_path / "none")) is None


@pytest.mark.spark
def test_workers_read_the_blocks_of_their_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Tasks divide the first file, and other files share a task. Each row is read once."""
    path, large = str(tmp_path / "it's a b é"), range(20_000)
    few = WriterProperties(max_row_group_size=1_000)
    for seq in (large, range(20_000, 20_010), range(20_010, 20_020)):
        rows = pa.table(
            {"seq": seq, "type": [f"{each * 7919 % 10_007}" for each in seq], "broker": [1] * len(seq)}, SCHEMA
        )
        write_deltalake(path, rows, mode="append", writer_properties=few)
    schema = TraceSource(path).file_schema(SparkBackend(spark))
    assert schema == SCHEMA

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in read_blocks(batches, schema, ["seq"]):
            yield from table.to_batches()

    sizes = {"spark.sql.files.maxPartitionBytes": "20000", "spark.sql.files.openCostInBytes": "100"}
    try:
        for name, value in sizes.items():
            spark.conf.set(name, value)
        events = spark.read.format("delta").load(path)
        places = events.select(sf.input_file_name().alias("file"), sf.input_file_block_start().alias("start"))
        blocks = places.distinct().count()
        read = places.mapInArrow(work, "seq bigint").toArrow()["seq"].to_pylist()
    finally:
        for name in sizes:
            spark.conf.unset(name)
    assert blocks > 5
    assert sorted(read) == list(range(20_020))
