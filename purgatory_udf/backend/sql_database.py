"""SQL over Delta tables and Arrow tables, executed by DuckDB in this process or by Spark.

A `SqlDatabase` is a namespace of views and runs queries on them. Queries are written once, in the part of Spark SQL
that DuckDB shares; `duckdb_macros.sql` adds to DuckDB the functions that only Spark has. Rules for such queries:

- Parameters are named and written `:name`. They stand for values, and views have none.
- Columns named like a DuckDB keyword (`group`) are qualified: `t.group`.
- `ORDER BY` has `NULLS FIRST` or `NULLS LAST` where a value can be null.
- Strings are concatenated with `||`, decimals written as doubles (`1e3`), empty types given by `CAST(NULL AS STRING)`.
- No lambda functions and no `IGNORE NULLS`: the engines write these differently. `fields(list, 'name')` is the list of
  one field of each struct in a list, which must be a column; `list_total(fields(list, 'name'))` is their sum.

Both engines return the same Arrow types: integers as int64 or int32, times as timestamp[us, UTC].
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import threading
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, cached_property
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.common.local_files import require_local_path
from purgatory_udf.contract.tables import COMMENT, with_comments, without_comments

if TYPE_CHECKING:
    import duckdb
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

Parameters = Mapping[str, int | float | str | bool | None]
Result = TypeVar("Result")

# A string, a comment or a quoted identifier, or else a parameter. `::` is a cast.
_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/|::|:(?P<name>[a-z]\w*)""", re.DOTALL)
# A field of each struct of a list.
_FIELDS = re.compile(r"\bfields\((\w+), '(\w+)'\)")
# The sum of a list without its nulls; null if there is nothing to add.
_TOTAL = re.compile(r"\blist_total\(([\w.]+)\)")
_SPARK_TOTAL = r"aggregate(\1, CAST(NULL AS BIGINT), (total, item) -> coalesce(total + item, total, item))"
# Reader features that leave the Parquet files readable as they are.
_READER_FEATURES = {"timestampNtz"}
# How DuckDB's errors begin if a query needs more than the memory limit, and if DuckDB itself has an error, after which
# the database refuses all queries.
_OUT_OF_MEMORY, _OF_DUCKDB = "Out of Memory Error", ("INTERNAL Error", "FATAL Error")
# The error of DuckDB if Ctrl-C is pressed during a query in the main thread.
_INTERRUPTED = "Query interrupted"
# Bytes of rows up to which a second thread gains less than its database costs.
_SMALL_BYTES = 64 << 20
# Bytes of tables up to which a second thread gains less than it costs to distribute each query over threads.
_ONE_THREAD_BYTES = 8 << 20
# Rows of a batch that is written: of DuckDB's default, a million, its reader and the writer hold several batches.
_BATCH_ROWS = 100_000
# Databases that are open, but not in use. To open one takes 35 ms, in which DuckDB creates its catalog of functions.
_idle: list[duckdb.DuckDBPyConnection] = []
# Number of files of a table above which their columns are compared, and the columns of each.
_SEVERAL_FILES = 10
_COLUMNS_OF_FILES = """
SELECT list((column_id, name, duckdb_type, type, converted_type, logical_type) ORDER BY column_id) AS columns
FROM parquet_schema([{}]) WHERE column_id > 0 GROUP BY file_name
"""
# Characters of a path that DuckDB takes for a pattern.
_GLOB = re.compile(r"[*?\[{]")


class SqlDatabase(ABC):
    """Views by name, and queries on them. Several threads may query at the same time."""

    @abstractmethod
    def add_table(self, name: str, path: str, schema: pa.Schema | None = None, *, is_growing: bool = False) -> bool:
        """Add a view of a Delta table, and return whether the table exists.

        Args:
            name: Name of the view.
            path: Folder of the table.
            schema: Columns of the view. A column that the table lacks is null; without a table, the view has no rows.
                With None, the view has the table's columns, and the table must exist.
            is_growing: Whether rows may be appended at the same time; all queries then read the version that the table
                has now.
        """

    @abstractmethod
    def add_rows(self, name: str, rows: pa.Table) -> None:
        """Add a view of an Arrow table."""

    @abstractmethod
    def add_view(self, name: str, query: str) -> None:
        """Add a view of a query without parameters."""

    @abstractmethod
    def keep(self, name: str, query: str) -> None:
        """Compute the rows of a query without parameters, and add a view of them, for all queries until `release`."""

    @abstractmethod
    def release(self, name: str) -> None:
        """Free the rows that `keep` has computed. The view must not be queried afterwards."""

    @abstractmethod
    def query(self, query: str, parameters: Parameters | None = None) -> pa.Table:
        """Return the rows of a query. Parameters that it does not name are ignored."""

    @abstractmethod
    def save(
        self,
        query: str,
        path: str,
        schema: pa.Schema,
        parameters: Parameters | None = None,
        *,
        constants: Mapping[str, str] | None = None,
        append: bool = False,
        single_file: bool = False,
    ) -> None:
        """Write the rows of a query to a Delta table.

        Args:
            query: The query.
            path: Folder of the table.
            schema: Columns of the table, in their order and with their types.
            parameters: Values of the query's parameters.
            constants: Further columns, each with one value in every row.
            append: Whether to append to the table instead of replacing it.
            single_file: Whether to write one file, in which the rows keep the order of the query.
        """


def parameters_of(query: str) -> set[str]:
    """Return the names of the query's parameters."""
    return {token["name"] for token in _TOKENS.finditer(query) if token["name"]}


def _used(query: str, parameters: Parameters | None) -> dict[str, Any]:
    names = parameters_of(query)
    return {name: value for name, value in (parameters or {}).items() if name in names}


class DuckDatabase(SqlDatabase):
    """An empty DuckDB database in this process, which spills to the directory for temporary files.

    Raises `NeedsSparkError` for tables that it cannot read (remote ones, and ones with unsupported features), and for
    queries that need more memory than `MOST_MEMORY` in spite of spilling.
    """

    # Queries beyond `MEMORY` spill; it suffices for the metrics of 16 million operations. Parts of some queries do not
    # spill, for example lists: these queries are repeated with one thread, and then with `MOST_MEMORY`, a share of this
    # machine's memory. On machines with less than `LARGE_BYTES` that is the limit from the start.
    MEMORY, MOST_MEMORY, LARGE_BYTES = "1250MB", "25%", 5_000_000_000

    def __init__(self, memory: str | None = None, threads: int | None = None) -> None:
        self._lock = threading.Lock()
        self._threads = threads
        is_large = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= self.LARGE_BYTES
        self._memory = memory or (self.MEMORY if is_large else self.MOST_MEMORY)
        self._may_grow = memory is None and threads is None
        # Keeps the open database for another object when this one is freed.
        self._reuse: weakref.finalize[..., DuckDatabase] | None = None
        # Bytes of tables and rows that queries may read.
        self._bytes: float = 0

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        try:
            connection = _idle.pop()
        except IndexError:
            connection = _opened()
        connection.execute(f"SET memory_limit = '{self._memory}'")
        self._set_threads(connection)
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = false")
        # A query opens each file of a table several times: when it is bound, when it is executed, and for each scan.
        connection.execute("SET parquet_metadata_cache = true")
        connection.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        self._reuse = weakref.finalize(self, _keep_for_reuse, connection)
        self._reuse.atexit = False
        return connection

    def add_table(self, name: str, path: str, schema: pa.Schema | None = None, *, is_growing: bool = False) -> bool:
        table = _delta_table(path)
        if schema is None:
            if table is None:
                raise NeedsSparkError(f"{path}: no Delta table that can be read without Spark")
            schema = pa.schema(table.schema().to_arrow())
        with self._exclusive():
            if table is None:
                self._connection.register(name, schema.empty_table())
                return False
            self._connection.register(f"{name}_columns", schema.empty_table())
            source = self._source(name, table)
            columns = ", ".join(self._columns(f"{name}_columns", source))
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {columns} FROM {source}")
        return True

    def _set_threads(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Use one thread for small tables and one per core for others, unless the number of threads is given."""
        threads = self._threads or (1 if self._bytes <= _ONE_THREAD_BYTES else None)
        connection.execute("RESET threads" if threads is None else f"SET threads = {threads}")

    def _add_bytes(self, count: float) -> None:
        was_small = self._bytes <= _ONE_THREAD_BYTES
        self._bytes += count
        if was_small and self._bytes > _ONE_THREAD_BYTES:
            self._set_threads(self._connection)

    def _source(self, name: str, table: DeltaTable) -> str:
        """Return the SQL source for a table: its files, or a dataset `name` if DuckDB would misread them."""
        paths = [unquote(uri).removeprefix("file://") for uri in table.file_uris()]
        # DuckDB reports missing files.
        sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in paths]
        self._add_bytes(sum(sizes))
        if not paths or table.metadata().partition_columns or any(map(_GLOB.search, paths)):
            self._connection.register(f"{name}_files", table.to_pyarrow_dataset())
            return f"{name}_files"
        listed = _path_list(paths)
        # DuckDB opens each file for its columns, in each query; comparing the columns once takes less time.
        count = f"SELECT count(DISTINCT columns) FROM ({_COLUMNS_OF_FILES.format(listed)})"
        if len(paths) <= _SEVERAL_FILES or self._connection.execute(count).fetchall() != [(1,)]:
            return f"read_parquet([{listed}], union_by_name = true)"
        # Then it estimates the number of rows by the first file.
        mean = sum(sizes) / len(sizes)
        usual = min(range(len(paths)), key=lambda place: abs(sizes[place] - mean))
        return f"read_parquet([{_path_list([paths[usual], *paths[:usual], *paths[usual + 1 :]])}])"

    def _columns(self, wanted: str, source: str) -> Iterator[str]:
        present = self._types(source)
        for name, kind in self._types(wanted).items():
            quoted = '"' + name.replace('"', '""') + '"'
            if name not in present:
                yield f"CAST(NULL AS {kind}) AS {quoted}"
            # Spark writes times as INT96, which DuckDB reads without their zone.
            elif present[name] != kind and kind.startswith("TIMESTAMP"):
                yield f"CAST({quoted} AS {kind}) AS {quoted}"
            else:
                yield quoted

    def _types(self, source: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self._connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}

    def add_rows(self, name: str, rows: pa.Table | pa.RecordBatchReader) -> None:
        """Add a view of an Arrow table, or of a stream that a single query or `keep` reads."""
        # A query that has read a stream must not be repeated: the stream is at its end.
        self._may_grow = self._may_grow and isinstance(rows, pa.Table)
        with self._exclusive():
            self._add_bytes(rows.nbytes if isinstance(rows, pa.Table) else inf)
            self._connection.register(name, rows)

    def add_view(self, name: str, query: str) -> None:
        with self._exclusive():
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")

    def keep(self, name: str, query: str) -> None:
        def compute() -> None:
            # A view has no order.
            with self._in_any_order():
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name}_rows AS {query}")
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {name}_rows")

        self._executed_in_memory(compute)

    def release(self, name: str) -> None:
        with self._exclusive():
            self._connection.execute(f"DROP TABLE IF EXISTS {name}_rows")

    def query(self, query: str, parameters: Parameters | None = None) -> pa.Table:
        return self._executed_in_memory(lambda: _plain(self._executed(query, parameters).to_arrow_table()))

    def stream(self, query: str, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query as batches of about `rows` rows, with the columns of the schema."""
        with self._exclusive():
            for batch in self._executed(query, None).to_arrow_reader(rows):
                yield from pa.Table.from_batches([batch]).cast(schema).to_batches()

    def close(self) -> None:
        """Free memory and files of the database, and end its threads."""
        self._prevent_reuse()
        self._connection.close()

    def _prevent_reuse(self) -> None:
        """Close the database when this object is freed, instead of keeping it for another one."""
        if self._reuse:
            self._reuse.detach()

    def save(
        self,
        query: str,
        path: str,
        schema: pa.Schema,
        parameters: Parameters | None = None,
        *,
        constants: Mapping[str, str] | None = None,
        append: bool = False,
        single_file: bool = False,
    ) -> None:
        from deltalake import ColumnProperties, WriterProperties

        from purgatory_udf.backend.local_delta import write_table

        written = with_comments(without_comments(schema), schema)
        # Dictionaries of values that hardly repeat take a fifth of the time, and enlarge the files.
        unlike = [field.name for field in schema if field.name == "operation_id" or pa.types.is_timestamp(field.type)]
        plain = dict.fromkeys(unlike, ColumnProperties(dictionary_enabled=False))

        def batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
            for batch in reader:
                yield from _conform(pa.Table.from_batches([batch]), written, constants or {}).to_batches()

        def write() -> None:
            order = nullcontext() if single_file else self._in_any_order()
            # An open reader, which the traceback of a failure keeps, would refuse all further queries.
            with order, self._executed(query, parameters).to_arrow_reader(_BATCH_ROWS) as reader:
                write_table(
                    str(require_local_path(path)),
                    pa.RecordBatchReader.from_batches(written, batches(reader)),
                    mode="append" if append else "overwrite",
                    schema_mode=None if append else "overwrite",
                    writer_properties=WriterProperties(compression="SNAPPY", column_properties=plain),
                )

        self._executed_in_memory(write)

    def _executed(self, query: str, parameters: Parameters | None) -> duckdb.DuckDBPyRelation:
        text = _TOKENS.sub(lambda token: f"${token['name']}" if token["name"] else token[0], query)
        return self._connection.sql(text, params=_used(query, parameters))

    def _executed_in_memory(self, execute: Callable[[], Result]) -> Result:
        """Return the result of a function that executes a query.

        If memory runs out, the function is called again, first with one thread, because each thread holds rows of its
        own, and then with more memory.

        Raises:
            NeedsSparkError: The query needs more than `MOST_MEMORY`.
        """
        with self._exclusive():
            try:
                return self._interruptible(execute)
            except Exception as error:
                if not self._may_grow or not _is_out_of_memory(error):
                    raise
            try:
                self._connection.execute("SET threads = 1")
                return self._interruptible(execute)
            except Exception as error:
                if not _is_out_of_memory(error):
                    raise
            finally:
                self._set_threads(self._connection)
            self._may_grow = False
            self._connection.execute(f"SET memory_limit = '{self.MOST_MEMORY}'")
            return self._interruptible(execute)

    def _interruptible(self, execute: Callable[[], Result]) -> Result:
        """Return the result of a function that executes a query. Ctrl-C stops the query.

        In the main thread, DuckDB would notice Ctrl-C after seconds, and raise an error of its own.
        """
        if threading.current_thread() is not threading.main_thread():
            return execute()
        with ThreadPoolExecutor(1) as thread:
            # Ctrl-C while the thread starts would let the executor forget it, and the query outlive this call.
            thread.submit(int).result()
            result = thread.submit(execute)
            try:
                # Python notices Ctrl-C just before it waits for a lock only afterwards.
                while not wait([result], timeout=0.1).done:
                    pass
                return result.result()
            except KeyboardInterrupt:
                # DuckDB forgets an interrupt that comes before it executes the prepared query.
                query_has_ended = thread.submit(int)
                while not query_has_ended.done():
                    self._connection.interrupt()
                    wait([query_has_ended], timeout=0.05)
                raise

    @contextmanager
    def _in_any_order(self) -> Iterator[None]:
        """Let queries return rows in any order: threads need not wait for each other then."""
        self._connection.execute("SET preserve_insertion_order = false")
        try:
            yield
        finally:
            self._connection.execute("RESET preserve_insertion_order")

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Use the connection exclusively in the `with` block.

        Raises:
            NeedsSparkError: DuckDB has run out of memory, while Spark can spill more of a query; or DuckDB has failed.
        """
        try:
            with self._lock:
                try:
                    yield
                except BaseException:
                    # The database may have failed, not only the query.
                    self._prevent_reuse()
                    raise
        except KeyboardInterrupt:
            # Another thread may be executing a query.
            self._connection.interrupt()
            raise
        except Exception as error:
            if str(error) == _INTERRUPTED:
                raise KeyboardInterrupt from error
            if _is_out_of_memory(error) or any(kind in str(error) for kind in _OF_DUCKDB):
                raise NeedsSparkError(f"{type(error).__name__}: {error}") from error
            raise


def _path_list(paths: Iterable[str]) -> str:
    return ", ".join("'" + path.replace("'", "''") + "'" for path in paths)


def query_rows(text: str, named: Mapping[str, pa.Table]) -> pa.Table:
    """Return the rows of a query over Arrow tables, which it refers to by their names in braces."""
    query = text.format_map({name: f'"{name}"' for name in named})
    if sum(rows.nbytes for rows in named.values()) <= _SMALL_BYTES:
        with suppress(NeedsSparkError):
            # The only thread is the caller's.
            return _queried(DuckDatabase(threads=1), query, named)
    return _queried(DuckDatabase(), query, named)


def _queried(database: DuckDatabase, query: str, named: Mapping[str, pa.Table]) -> pa.Table:
    for name, rows in named.items():
        database.add_rows(name, rows)
    return database.query(query)


def open_databases(count: int) -> None:
    """Open databases for the next that are created, while this process has nothing else to do."""
    for _ in range(count):
        _keep_for_reuse(_opened())


def _keep_for_reuse(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep an open database for the next `DuckDatabase`."""
    # Threads must not be running when this process forks.
    connection.execute("SET threads = 1")
    # Views belong to a connection: they are dropped with it, and the database stays open with a new one.
    _idle.append(connection.cursor())


def _opened() -> duckdb.DuckDBPyConnection:
    """Open a new database with Spark's functions."""
    import duckdb

    connection = duckdb.connect(
        config={
            # DuckDB creates it when it spills, and removes it when the connection is freed.
            "temp_directory": f"{_spill_prefix()}-{uuid.uuid4().hex}",
            # Extensions would be downloaded.
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    connection.execute(files("purgatory_udf.backend").joinpath("duckdb_macros.sql").read_text(encoding="utf-8"))
    return connection


@cache
def _spill_prefix() -> str:
    """Return how the folders begin to which this process spills. They are deleted when it ends.

    Commands end without freeing their connections, which would delete the folders, too.
    """
    folder, name = tempfile.gettempdir(), f"purgatory-replay-duckdb-{uuid.uuid4().hex}"

    def delete() -> None:
        for spilled in Path(folder).glob(f"{name}-*"):
            shutil.rmtree(spilled, ignore_errors=True)

    atexit.register(delete)
    return str(Path(folder, name))


def _is_out_of_memory(error: Exception) -> bool:
    # Writing wraps an error of the query in one of the writer.
    return _OUT_OF_MEMORY in str(error) or isinstance(error, MemoryError)


def _delta_table(path: str) -> DeltaTable | None:
    """Return the table at its newest version; None if it does not exist.

    Raises:
        NeedsSparkError: The table has features that only Spark can read.
    """
    from purgatory_udf.backend.local_delta import LocalDelta

    table = LocalDelta().table_at(path)
    if table is not None:
        features = {*(table.protocol().reader_features or ())} - _READER_FEATURES
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            features.add("columnMapping")
        if features:
            raise NeedsSparkError(f"{path}: the table has features that need Spark: {', '.join(sorted(features))}")
    return table


def _conform(rows: pa.Table, schema: pa.Schema, constants: Mapping[str, str]) -> pa.Table:
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows.num_rows)
        if field.name in constants
        else _integers(rows.column(field.name)).cast(field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(rows: pa.Table) -> pa.Table:
    columns = [_integers(column) for column in rows.columns]
    moment = pa.timestamp("us", "UTC")
    return pa.Table.from_arrays(
        [column.cast(moment) if pa.types.is_timestamp(column.type) else column for column in columns],
        names=rows.column_names,
    )


def _integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return DuckDB's sums and counts, which are 128 bits wide, as int64."""
    return column.cast(pa.int64()) if pa.types.is_decimal(column.type) else column


class SparkDatabase(SqlDatabase):
    """Temporary views in a new Spark session, which shares the context of the given session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark.newSession()
        # Delta's parser extension ignores parameters; this way Spark binds them after parsing.
        self._spark.conf.set("spark.sql.legacy.parameterSubstitution.constantsOnly", "true")

    def add_table(self, name: str, path: str, schema: pa.Schema | None = None, *, is_growing: bool = False) -> bool:
        from delta.tables import DeltaTable
        from pyspark.sql import functions as sf
        from pyspark.sql.pandas.types import from_arrow_schema

        if schema is not None and not DeltaTable.isDeltaTable(self._spark, path):
            self._spark.createDataFrame([], from_arrow_schema(schema)).createOrReplaceTempView(name)
            return False
        reader = self._spark.read.format("delta")
        if is_growing:
            latest = DeltaTable.forPath(self._spark, path).history(1).select("version").first()
            assert latest is not None
            reader = reader.option("versionAsOf", latest.version)
        frame = reader.load(path)
        if schema is None:
            frame.createOrReplaceTempView(name)
            return True
        known = set(frame.columns)
        frame.select(
            *(
                sf.col(f"`{field.name}`")
                if field.name in known
                else sf.lit(None).cast(field.dataType).alias(field.name)
                for field in from_arrow_schema(schema).fields
            )
        ).createOrReplaceTempView(name)
        return True

    def add_rows(self, name: str, rows: pa.Table) -> None:
        self._spark.createDataFrame(rows).createOrReplaceTempView(name)

    def add_view(self, name: str, query: str) -> None:
        self._spark.sql(_in_spark(query)).createOrReplaceTempView(name)

    def keep(self, name: str, query: str) -> None:
        # A cached view would still be planned in every query; views of views become too large for that.
        self._spark.sql(_in_spark(query)).localCheckpoint().createOrReplaceTempView(name)

    def release(self, name: str) -> None:
        # Spark frees the rows once nothing refers to them.
        self._spark.catalog.dropTempView(name)

    def query(self, query: str, parameters: Parameters | None = None) -> pa.Table:
        return self.frame(query, parameters).toArrow()

    def save(
        self,
        query: str,
        path: str,
        schema: pa.Schema,
        parameters: Parameters | None = None,
        *,
        constants: Mapping[str, str] | None = None,
        append: bool = False,
        single_file: bool = False,
    ) -> None:
        from pyspark.sql import functions as sf
        from pyspark.sql.pandas.types import from_arrow_schema

        frame, fixed = self.frame(query, parameters), constants or {}
        columns = []
        for field, kind in zip(schema, from_arrow_schema(schema).fields, strict=True):
            column = sf.lit(fixed[field.name]) if field.name in fixed else sf.col(f"`{field.name}`")
            comment = (field.metadata or {}).get(COMMENT.encode())
            metadata = {} if comment is None else {"metadata": {COMMENT: comment.decode()}}
            columns.append(column.cast(kind.dataType).alias(field.name, **metadata))
        frame = frame.select(*columns)
        if single_file:
            frame = frame.coalesce(1)
        writer = frame.write.format("delta").mode("append" if append else "overwrite")
        writer.option("overwriteSchema", str(not append).lower()).save(path)

    def frame(self, query: str, parameters: Parameters | None = None) -> DataFrame:
        """Return the rows of a query as a DataFrame."""
        return self._spark.sql(_in_spark(query), args=_used(query, parameters))


def _in_spark(query: str) -> str:
    """Return a query with Spark's notation for a field of each struct of a list, and for the sum of a list."""
    return _TOTAL.sub(_SPARK_TOTAL, _FIELDS.sub(r"\1.\2", query))
