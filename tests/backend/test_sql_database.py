"""Both implementations of `SqlDatabase`: tables become views, and queries return the same types."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from purgatory_udf.backend import sql_database
from purgatory_udf.backend.backend import LocalBackend, SparkBackend
from purgatory_udf.backend.sql_database import DuckDatabase, SqlDatabase, parameters_of, query_rows
from purgatory_udf.common.errors import NeedsSparkError, explain_storage_error
from purgatory_udf.contract.tables import COMMENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENT = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("parts", pa.list_(pa.int32()))]
)
ROWS = pa.Table.from_pylist(
    [{"id": 1, "name": "a", "at": MOMENT, "parts": [1, 2]}, {"id": 2, "name": None, "at": None, "parts": None}], SCHEMA
)


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def new_database(request: pytest.FixtureRequest) -> Callable[[], SqlDatabase]:
    """A function that opens an empty database of the engine."""
    if request.param == "duckdb":
        return DuckDatabase
    spark: SparkSession = request.getfixturevalue("spark")
    return SparkBackend(spark).database


@pytest.fixture
def database(new_database: Callable[[], SqlDatabase]) -> SqlDatabase:
    return new_database()


def test_process_without_spark_queries_duckdb() -> None:
    assert isinstance(LocalBackend().database(), DuckDatabase)


def test_table_is_read_by_path(database: SqlDatabase, tmp_path: Path) -> None:
    """The folder's name contains a quote, a wildcard and a backslash."""
    path = str(tmp_path / "it's 100% a*b?")
    write_deltalake(path, ROWS)
    assert database.add_table("t", path, SCHEMA)
    read = database.query("SELECT * FROM t ORDER BY id")
    assert read.schema.types[:3] == SCHEMA.types[:3]
    assert read.to_pylist() == ROWS.to_pylist()


def test_missing_table_is_empty(database: SqlDatabase, tmp_path: Path) -> None:
    assert not database.add_table("t", str(tmp_path / "none"), SCHEMA)
    assert database.query("SELECT count(*) AS n, max(t.at) AS last FROM t").to_pylist() == [{"n": 0, "last": None}]
    assert database.query("SELECT * FROM t").column_names == SCHEMA.names


def test_missing_column_is_null(database: SqlDatabase, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS.select(["name", "id"]))
    database.add_table("t", str(tmp_path), SCHEMA)
    assert database.query("SELECT * FROM t ORDER BY id").to_pylist() == [
        {"id": 1, "name": "a", "at": None, "parts": None},
        {"id": 2, "name": None, "at": None, "parts": None},
    ]


@pytest.mark.parametrize("with_later_column", [False, True])
def test_many_files_are_read_by_column_name(with_later_column: bool, database: SqlDatabase, tmp_path: Path) -> None:
    path, plain = str(tmp_path / "t"), pa.table({"id": [1]})
    for _ in range(sql_database._SEVERAL_FILES):
        write_deltalake(path, plain, mode="append")
    last = pa.table({"id": [2], "name": ["b"]}) if with_later_column else pa.table({"id": [2]})
    write_deltalake(path, last, mode="append", schema_mode="merge")
    database.add_table("t", path, pa.schema([("name", pa.string()), ("id", pa.int64())]))
    read = database.query("SELECT id, name, count(*) AS files FROM t GROUP BY id, name ORDER BY id")
    assert read.to_pylist() == [
        {"id": 1, "name": None, "files": sql_database._SEVERAL_FILES},
        {"id": 2, "name": "b" if with_later_column else None, "files": 1},
    ]


def test_partitioned_table_has_its_partition_columns(database: SqlDatabase, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS, partition_by=["name"])
    database.add_table("t", str(tmp_path), SCHEMA)
    assert database.query("SELECT id, name FROM t ORDER BY id").to_pylist() == ROWS.select(["id", "name"]).to_pylist()


def test_growing_table_keeps_its_version(database: SqlDatabase, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    database.add_table("t", str(tmp_path), SCHEMA, is_growing=True)
    write_deltalake(str(tmp_path), ROWS, mode="append")
    assert database.query("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 2}]


def test_times_of_spark_are_utc(tmp_path: Path) -> None:
    """Spark writes INT96, which has no zone."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    write_deltalake(str(tmp_path), ROWS.select(schema.names))
    (file,) = (Path(uri) for uri in DeltaTable(str(tmp_path)).file_uris())
    pq.write_table(ROWS.select(schema.names), file, use_deprecated_int96_timestamps=True)
    database = DuckDatabase()
    database.add_table("t", str(tmp_path), schema)
    read = database.query("SELECT t.at, unix_micros(t.at) AS us FROM t WHERE id = 1")
    assert read.to_pylist() == [{"at": MOMENT, "us": 1_772_366_400_123_456}]


def test_unsupported_reader_feature_needs_spark(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    lines = log.read_text().splitlines()
    protocol = (
        '{"protocol":{"minReaderVersion":3,"minWriterVersion":7,'
        '"readerFeatures":["deletionVectors"],"writerFeatures":["deletionVectors"]}}'
    )
    log.write_text("\n".join(protocol if '"protocol"' in line else line for line in lines))
    with pytest.raises(NeedsSparkError, match="deletionVectors"):
        DuckDatabase().add_table("t", str(tmp_path), SCHEMA)


def test_remote_table_needs_spark() -> None:
    with pytest.raises(NeedsSparkError, match="s3a://bucket/t: is not on this machine"):
        DuckDatabase().add_table("t", "s3a://bucket/t", SCHEMA)


def _remove(file: Path) -> None:
    file.unlink()


def _truncate(file: Path) -> None:
    file.write_bytes(b"PAR1")


def _overwrite(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:100] + bytes(200) + content[300:])


@pytest.mark.parametrize("damage", [_remove, _truncate, _overwrite])
def test_damaged_file_is_reported(damage: Callable[[Path], None], tmp_path: Path) -> None:
    """The folder's name has a quote, a space and a comma."""
    path = str(tmp_path / "it's a, b")
    write_deltalake(path, pa.table({"n": list(range(1000))}))
    (file,) = Path(path).glob("*.parquet")
    damage(file)
    database = DuckDatabase()
    with pytest.raises(duckdb.Error) as raised:
        database.add_table("t", path)
        database.query("SELECT sum(n) FROM t")
    reported = explain_storage_error(str(raised.value), "")
    assert reported is not None and reported.startswith(f"{file} is missing or damaged")


def test_damaged_column_is_reported() -> None:
    """DuckDB does not name the file."""
    reported = explain_storage_error("Error: TProtocolException: Invalid data", "")
    assert reported is not None and reported.startswith("a file of the output is missing or damaged")


def test_failed_save_leaves_database_usable(tmp_path: Path) -> None:
    """The table's log is damaged, and the cleanup of views after the failure needs the database."""
    write_deltalake(str(tmp_path), ROWS)
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("{}\n")
    database = DuckDatabase()
    database.keep("numbers", "SELECT 1 AS n")
    with pytest.raises(DeltaError, match="No table metadata") as failure:
        database.save("SELECT n FROM numbers", str(tmp_path), pa.schema([("n", pa.int32())]))
    database.release("numbers")
    assert failure.value.__traceback__ is not None


def test_mistake_in_query_is_reported() -> None:
    with pytest.raises(duckdb.BinderException, match="nothing"):
        DuckDatabase().query("SELECT nothing FROM (SELECT 1 AS n)")


_LONG_LIST = "SELECT size(collect_list(n)) AS n FROM (SELECT explode(sequence(1, 3000000, 1)) AS n) t"


def test_query_beyond_memory_is_repeated_with_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuckDatabase, "MEMORY", "10MB")
    assert DuckDatabase().query(_LONG_LIST).to_pylist() == [{"n": 3_000_000}]
    DuckDatabase().save(_LONG_LIST, str(tmp_path), pa.schema([("n", pa.int64())]))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == [{"n": 3_000_000}]
    with pytest.raises(NeedsSparkError, match="Out of Memory"):
        DuckDatabase("10MB").query(_LONG_LIST)
    streaming = DuckDatabase()
    numbers = pa.record_batch({"n": range(3_000_000)})
    streaming.add_rows("numbers", pa.RecordBatchReader.from_batches(numbers.schema, [numbers]))
    with pytest.raises(NeedsSparkError, match="Out of Memory"):
        streaming.query("SELECT size(collect_list(n)) AS n FROM numbers")


def test_query_beyond_memory_is_first_repeated_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuckDatabase, "MEMORY", "10MB")
    monkeypatch.setattr(DuckDatabase, "MOST_MEMORY", "1GB")
    # The database has no tables, but should have several threads.
    monkeypatch.setattr(sql_database, "_ONE_THREAD_BYTES", -1)
    database, tried = DuckDatabase(), []

    def execute() -> int:
        tried.append(_settings(database))
        return database._executed(_LONG_LIST, None).fetchall()[0][0]

    every = _settings(database)["threads"]
    assert database._executed_in_memory(execute) == 3_000_000
    assert tried == [
        {"threads": every, "memory_limit": "9.5 MiB"},
        {"threads": 1, "memory_limit": "9.5 MiB"},
        {"threads": every, "memory_limit": "953.6 MiB"},
    ]
    assert _settings(database) == tried[-1]


def _settings(database: DuckDatabase) -> dict[str, Any]:
    names = ("threads", "memory_limit")
    values = database._connection.sql(f"SELECT {', '.join(f'current_setting({name!r})' for name in names)}").fetchall()
    return dict(zip(names, values[0], strict=True))


def test_query_beyond_memory_needs_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists do not spill."""
    monkeypatch.setattr(DuckDatabase, "MEMORY", "10MB")
    monkeypatch.setattr(DuckDatabase, "MOST_MEMORY", "11MB")
    database = DuckDatabase()
    query = _LONG_LIST
    with pytest.raises(NeedsSparkError, match="Out of Memory"):
        database.query(query)
    with pytest.raises(NeedsSparkError, match="Out of Memory"):
        database.save(query, str(tmp_path), pa.schema([("n", pa.int64())]))


@pytest.mark.parametrize("error", [duckdb.InternalException("INTERNAL Error: x"), OSError("FATAL Error: y")])
def test_error_within_duckdb_needs_spark(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(NeedsSparkError, match=r"(InternalException: INTERNAL|OSError: FATAL) Error"):
        DuckDatabase()._executed_in_memory(fail)


def test_small_query_starts_no_thread() -> None:
    """The process forks between such queries."""
    rows = pa.table({"n": [1, 2]})
    threads = "SELECT sum(n) AS n, current_setting('threads') AS threads FROM {rows}"
    assert query_rows(threads, {"rows": rows}).to_pylist() == [{"n": 3, "threads": 1}]


def test_small_queries_do_not_share_rows() -> None:
    assert query_rows("SELECT n FROM {a}", {"a": pa.table({"n": [1]})}).to_pylist() == [{"n": 1}]
    assert query_rows("SELECT n FROM {a}", {"a": pa.table({"n": [2]})}).to_pylist() == [{"n": 2}]
    with pytest.raises(duckdb.CatalogException, match=r'Table with name "?a"? does not exist'):
        query_rows('SELECT n FROM "a", {b}', {"b": pa.table({"m": [1]})})


def test_small_tables_are_queried_by_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    size = sum(file.stat().st_size for file in tmp_path.glob("*.parquet"))
    monkeypatch.setattr(sql_database, "_ONE_THREAD_BYTES", size)
    every, database = duckdb.connect().execute("SELECT current_setting('threads')").fetchall()[0][0], DuckDatabase()
    for number, threads in enumerate((1, every, every)):
        database.add_table(f"table_{number}", str(tmp_path))
        assert _settings(database)["threads"] == threads
    streaming = DuckDatabase()
    streaming.add_rows("rows", ROWS.to_reader())
    assert _settings(streaming)["threads"] == every


def test_open_database_is_reused_without_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[duckdb.DuckDBPyConnection] = []
    monkeypatch.setattr(sql_database, "_idle", idle)
    usual, first = _settings(DuckDatabase()), DuckDatabase("100MB")
    first.add_rows("a", pa.table({"n": [1]}))
    first.keep("b", "SELECT * FROM a")
    del first
    # The process may fork now.
    assert idle[0].execute("SELECT current_setting('threads')").fetchall() == [(1,)]
    second = DuckDatabase()
    assert _settings(second) == usual
    assert idle == []
    for name in ("a", "b", "b_rows"):
        with pytest.raises(duckdb.CatalogException, match=f'Table with name "?{name}"? does not exist'):
            second.query(f"SELECT * FROM {name}")
    assert second.query("SELECT pmod(-1, 3) AS n").to_pylist() == [{"n": 2}]


def test_database_of_failed_query_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[duckdb.DuckDBPyConnection] = []
    monkeypatch.setattr(sql_database, "_idle", idle)
    with pytest.raises(duckdb.CatalogException):
        LocalBackend().query("SELECT * FROM a", {})
    assert idle == []
    assert LocalBackend().query("SELECT 1 AS n", {}).to_pylist() == [{"n": 1}]
    assert len(idle) == 1


def test_small_query_beyond_memory_gets_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is repeated in a database of its own."""
    monkeypatch.setattr(DuckDatabase, "MEMORY", "20MB")
    query = "SELECT len(list(i)) AS n FROM (SELECT unnest(range(n)) AS i FROM {rows})"
    assert query_rows(query, {"rows": pa.table({"n": [3_000_000]})}).to_pylist() == [{"n": 3_000_000}]


def test_table_has_its_own_columns(database: SqlDatabase, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    assert database.add_table("t", str(tmp_path))
    read = database.query("SELECT * FROM t ORDER BY id")
    assert read.schema.types[:3] == SCHEMA.types[:3]
    assert read.to_pylist() == ROWS.to_pylist()


def test_sums_and_times_have_the_same_types(database: SqlDatabase) -> None:
    database.add_rows("t", ROWS)
    database.add_view("v", "SELECT id, size(parts) AS n, unix_millis(t.at) AS ms FROM t")
    query = """
        SELECT sum(id) AS sum, count(*) AS count, count_if(id > 1) AS some, sum(id) / count(*) AS mean,
            max(timestamp_millis(ms)) AS at, max(n) AS n
        FROM v
    """
    read = database.query(query)
    assert read.schema.types[:5] == [*[pa.int64()] * 3, pa.float64(), pa.timestamp("us", "UTC")]
    assert read.to_pylist() == [
        {"sum": 3, "count": 2, "some": 1, "mean": 1.5, "at": MOMENT.replace(microsecond=123_000), "n": 2}
    ]


def test_macros_follow_spark(database: SqlDatabase) -> None:
    """Engines differ in times before the epoch, in nulls and in ties."""
    query = """
        SELECT pmod(-3, 5) AS pmod,
            unix_millis(timestamp_millis(-1)) AS ms,
            timestamp_micros(unix_micros(timestamp_millis(5))) = timestamp_millis(5) AS is_same,
            count_if(v > 0) AS positive, count_if(CAST(NULL AS BOOLEAN)) AS unknown,
            size(collect_list(v)) AS collected, collect_list(CAST(NULL AS INT)) AS no_items,
            max_by(v, k) AS of_null, min_by(v, k) AS least, max_by(k, struct(1, coalesce(k, 0))) AS last,
            array_sort(array_except(any_value(l), any_value(m))) AS except,
            array_except(any_value(l), any_value(missing)) IS NULL AS of_missing,
            size(sequence(1, 10, 3)) AS steps
        FROM (
            SELECT v, k, split('b,a,b', ',') AS l, split('c', ',') AS m, split(CAST(NULL AS STRING), ',') AS missing
            FROM (VALUES (1, 1), (NULL, 2), (3, NULL)) AS t(v, k)
        ) t
    """
    assert database.query(query).to_pylist() == [
        {
            "pmod": 2,
            "ms": -1,
            "is_same": True,
            "positive": 2,
            "unknown": 0,
            "collected": 2,
            "no_items": [],
            "of_null": None,
            "least": 1,
            "last": 2,
            "except": ["a", "b"],
            "of_missing": True,
            "steps": 4,
        }
    ]


def test_explode_drops_empty_lists(database: SqlDatabase) -> None:
    database.add_rows("t", ROWS)
    assert database.query("SELECT id, explode(parts) AS part FROM t").to_pylist() == [
        {"id": 1, "part": 1},
        {"id": 1, "part": 2},
    ]


def test_fields_lists_one_field_of_structs(database: SqlDatabase) -> None:
    parts = [[{"topic": "a", "partition": 0}, {"topic": "b", "partition": 1}, {"topic": "a", "partition": 2}], [], None]
    database.add_rows("t", pa.table({"id": [1, 2, 3], "parts": parts}))
    assert database.query("SELECT id, fields(parts, 'topic') AS topics FROM t ORDER BY id").to_pylist() == [
        {"id": 1, "topics": ["a", "b", "a"]},
        {"id": 2, "topics": []},
        {"id": 3, "topics": None},
    ]
    database.add_view("v", "SELECT array_sort(array_distinct(fields(parts, 'topic'))) AS topics FROM t WHERE id = 1")
    assert database.query("SELECT topics FROM v").to_pylist() == [{"topics": ["a", "b"]}]


def test_list_total_skips_nulls(database: SqlDatabase) -> None:
    lists: list[list[int | None] | None] = [[1, 2**40], [None, 5], [5, None], [None], [], None]
    parts = [items if items is None else [{"bytes": item} for item in items] for items in lists]
    kind = pa.list_(pa.struct([("bytes", pa.int64())]))
    database.add_rows("t", pa.table({"id": range(len(parts)), "parts": pa.array(parts, kind)}))
    rows = database.query("SELECT list_total(fields(parts, 'bytes')) AS total FROM t ORDER BY id")
    assert rows.schema.field("total").type == pa.int64()
    assert rows.column("total").to_pylist() == [2**40 + 1, 5, 5, None, None, None]


def test_parameters_are_values(database: SqlDatabase) -> None:
    """They are bound outside of strings and comments; those that a query does not name are ignored."""
    hostile = "it's :n \\ \" $n -- ${n}"
    query = "SELECT :text AS text, ':text' AS string, CAST(:n AS BIGINT) + 1 AS n -- :comment"
    assert parameters_of(query) == {"text", "n"}
    assert database.query(query, {"text": hostile, "n": 2**40, "unused": 1}).to_pylist() == [
        {"text": hostile, "string": ":text", "n": 2**40 + 1}
    ]
    assert database.query("SELECT 1 AS n LIMIT :n", {"n": 0}).num_rows == 0


def test_databases_of_a_session_are_separate(new_database: Callable[[], SqlDatabase]) -> None:
    one, other = new_database(), new_database()
    for database, number in ((one, 1), (other, 2)):
        database.add_view("v", f"SELECT {number} AS n")
    assert [database.query("SELECT n FROM v").to_pylist() for database in (one, other)] == [[{"n": 1}], [{"n": 2}]]


def test_saved_table_has_order_types_and_comments(database: SqlDatabase, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("run_id", pa.string(), metadata={COMMENT: "ID of the run"}),
            pa.field("n", pa.int32()),
            pa.field("total", pa.int64(), metadata={COMMENT: "A sum"}),
            pa.field("at", pa.timestamp("us", "UTC")),
        ]
    )
    query = """
        SELECT sum(n) AS total, n, timestamp_millis(n) AS at
        FROM (SELECT explode(sequence(1, 3, 1)) AS n) t WHERE n <= :most GROUP BY n ORDER BY n DESC
    """

    def save(most: int, **options: Any) -> None:
        database.save(query, str(tmp_path), schema, {"most": most}, constants={"run_id": "r"}, **options)

    save(2, single_file=True)
    save(3, single_file=True)
    table = DeltaTable(str(tmp_path))
    saved = table.to_pyarrow_table()
    assert saved.column_names == schema.names
    assert saved.select(["run_id", "n", "total"]).to_pylist() == [
        {"run_id": "r", "n": n, "total": n} for n in (3, 2, 1)
    ]
    assert saved.schema.field("n").type == pa.int32() and saved.schema.field("at").type == pa.timestamp("us", "UTC")
    assert [field.metadata.get(COMMENT) for field in table.schema().fields] == ["ID of the run", None, "A sum", None]
    save(1, append=True)
    assert sorted(DeltaTable(str(tmp_path)).to_pyarrow_table().column("n").to_pylist()) == [1, 1, 2, 3]


def test_ended_command_leaves_no_spilled_rows(tmp_path: Path) -> None:
    """Commands end without freeing connections, which would remove what DuckDB has spilled."""
    program = """
from pathlib import Path
from purgatory_udf.backend.sql_database import DuckDatabase
from purgatory_udf.launch.submission import end_process

database = DuckDatabase("60MB")
rows = database._executed("SELECT i, md5(i::VARCHAR) AS t FROM range(1000000) r(i) ORDER BY t", None)
next(iter(rows.to_arrow_reader(1000)))
print(len(list(Path(SPILLED).glob("purgatory-replay-duckdb-*/*"))) > 0, flush=True)
end_process(7)
""".replace("SPILLED", repr(str(tmp_path)))
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "True\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("handled_interrupts")
def test_interrupt_stops_a_query() -> None:
    """Also if the signal does not wake the main thread. The database can be used afterwards."""
    batch, most, read = pa.record_batch({"number": [1, 2, 3]}), 10_000_000, 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        while read < most:
            read += 1
            yield batch

    database = DuckDatabase()
    database.add_rows("endless", pa.RecordBatchReader.from_batches(batch.schema, batches()))
    with pytest.raises(KeyboardInterrupt):
        database.query("SELECT sum(number) AS total FROM endless")
    assert 0 < read < most
    assert database.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


@pytest.mark.usefixtures("handled_interrupts")
def test_interrupt_before_execution_stops_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB forgets the first interrupt, which comes while the query is prepared."""
    database, interrupts = DuckDatabase(), 0
    connection = database._connection

    class Connection:
        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        def interrupt(self) -> None:
            nonlocal interrupts
            interrupts += 1
            connection.interrupt()

        def sql(self, *arguments: Any, **options: Any) -> Any:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            while not interrupts:
                pass
            return connection.sql(*arguments, **options)

    monkeypatch.setattr(database, "_connection", Connection())
    with pytest.raises(KeyboardInterrupt):
        database.query("SELECT count(*) AS rows FROM range(100000) a, range(10000000) b WHERE a.range < b.range")
    assert interrupts > 1


def test_interrupt_before_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C while the thread of a query starts, the query is not executed."""
    start, batch, read = threading.Thread.start, pa.record_batch({"number": [1]}), 0

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        while read < 100_000:
            read += 1
            yield batch

    database = DuckDatabase()
    database.add_rows("many", pa.RecordBatchReader.from_batches(batch.schema, batches()))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "start", interrupted)
        database.query("SELECT sum(number) AS total FROM many")
    assert database.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]
    assert read == 0
