"""Delta tables on the local disk through deltalake: the `DeltaStore` of a process without Spark.

If deltalake cannot read or write a table, `NeedsSparkError` is raised, because Spark supports more features of Delta.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, WriterProperties, write_deltalake
from deltalake import Transaction as _Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from purgatory_udf.backend.delta_store import (
    LOG_PROPERTIES,
    Commit,
    Condition,
    DeltaStore,
    Identity,
    Size,
    Transaction,
    has_log,
)
from purgatory_udf.backend.process_pool import run_parallel
from purgatory_udf.common.console import hidden_panics
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.common.local_files import require_local_path

# A table's rows of one file, or a function that makes them in the process that writes the file.
Part: TypeAlias = pa.Table | Callable[[], pa.Table]

_SPARK_FAILS_TOO = re.compile("No space left on device|Disk quota exceeded|Read-only file system|Permission denied")
# Characters of a path for which deltalake opens another folder, because it decodes them, or panics.
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[\\\[\]^|]")
# Newest known version of Delta's reader protocol.
_READER_VERSION = 3
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {"=": pc.equal, "<": pc.less, ">": pc.greater}
# Most retries of a compaction that conflicts with other commits; a later compaction will do as well.
_COMPACTION_TRIES = 3


@contextmanager
def needing_spark() -> Iterator[None]:
    """Convert errors of Arrow, deltalake and the disk in the `with` block to `NeedsSparkError`.

    Errors that Spark would meet too, such as a full disk, stay as they are.
    """
    try:
        yield
    except DamagedLogError:
        raise
    except (pa.ArrowException, DeltaError, OSError) as error:
        if _SPARK_FAILS_TOO.search(str(error)):
            raise
        raise NeedsSparkError(f"{type(error).__name__}: {error}") from error


def place_of(path: str) -> Path:
    """Return the local folder of a table.

    Raises:
        NeedsSparkError: deltalake cannot open the folder, because it is remote or because of a character in its path.
    """
    place = require_local_path(path)
    misread = _MISREAD.search(str(place.absolute()))
    if misread:
        raise NeedsSparkError(f"{path}: deltalake cannot open a path with {misread[0]}")
    return place


def write_table(path: str | DeltaTable, rows: pa.Table | pa.RecordBatchReader, **options: Any) -> None:
    """Write a table with deltalake's `write_deltalake`, and raise its panics on a full disk without printing them."""
    with hidden_panics():
        write_deltalake(path, rows, **options)


class DamagedLogError(DeltaError):
    """A file of a table's log is not JSON, so Spark cannot read the table either."""


class NewerProtocolError(UserError):
    """A table requires a newer version of Delta's protocol."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(
            f"{path}: requires version {version} of Delta's reader protocol, newer than {_READER_VERSION}; read the "
            "table with the program that wrote it"
        )


class LocalDelta(DeltaStore):
    """The `DeltaStore` for tables on the local disk, which uses deltalake and needs no JVM."""

    def table_at(self, path: str) -> DeltaTable | None:
        """Return the table at its newest version; None if it does not exist.

        Raises:
            NewerProtocolError: The table requires a newer reader version than deltalake has.
            PermissionError: The table's log cannot be read.
            DamagedLogError: The table's log is damaged.
        """
        with needing_spark():
            _require_known_protocol(path)
            try:
                table = DeltaTable(str(place_of(path)))
            except TableNotFoundError:
                return None
            except DeltaError as error:
                newer = re.search(r"minimum reader version (\d+)", str(error))
                if newer is None:
                    _require_json(place_of(path))
                    raise
                raise NewerProtocolError(path, int(newer[1])) from None
            _require_complete_log(place_of(path))
            return table

    def is_table(self, path: str) -> bool:
        with needing_spark():
            try:
                _require_known_protocol(path)
            except NewerProtocolError:
                return True
            return DeltaTable.is_deltatable(str(place_of(path)))

    def create(self, path: str, schema: pa.Schema) -> None:
        if self.is_table(path):
            return
        place = place_of(path)
        log = place / "_delta_log"
        if has_log([file.name for file in log.iterdir()] if log.is_dir() else []):
            raise NeedsSparkError(f"{path}: the table's log cannot be read without Spark")
        # Files of an interrupted first commit.
        _remove(place)
        with needing_spark():
            DeltaTable.create(
                str(place),
                Schema.from_arrow(schema),
                mode="error",
                configuration=dict(LOG_PROPERTIES),
            )

    def identity(self, path: str) -> Identity:
        with needing_spark():
            table = self._table(path)
            return Identity(str(table.metadata().id), table.version(), len(table.file_uris()))

    def columns(self, path: str) -> list[str]:
        with needing_spark():
            return [field.name for field in self._table(path).schema().fields]

    def history(self, path: str) -> list[Commit]:
        with needing_spark():
            commits = [
                Commit(
                    entry["version"],
                    entry.get("operation") or "",
                    (entry.get("operationParameters") or {}).get("mode"),
                    entry.get("userMetadata"),
                )
                for entry in self._table(path).history()
            ]
        return sorted(commits, key=lambda commit: commit.version)

    def read(self, path: str, columns: Sequence[str] | None = None, where: Sequence[Condition] = ()) -> pa.Table:
        with needing_spark():
            rows = dataset_of(self._table(path))
            chosen = None if columns is None else list(columns)
            return _in_utc(rows.to_table(columns=chosen, filter=_filter(where)))

    def count(self, path: str, where: Sequence[Condition] = ()) -> int:
        with needing_spark():
            return int(dataset_of(self._table(path)).count_rows(filter=_filter(where)))

    def append(
        self,
        path: str,
        rows: pa.Table | pa.RecordBatchReader,
        transaction: Transaction | None = None,
    ) -> None:
        place = str(place_of(path))
        with needing_spark():
            table = _table_without(place, transaction)
            if table is None:
                return
            write_table(table, rows, mode="append", commit_properties=_commit(transaction))

    def append_batches(
        self,
        path: str,
        schema: pa.Schema,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        transaction: Transaction | None = None,
    ) -> None:
        self.append(path, pa.RecordBatchReader.from_batches(schema, batches()), transaction)

    def overwrite(
        self, path: str, rows: pa.Table, where: Sequence[Condition] = (), replace_schema: bool = False
    ) -> None:
        predicate = _predicate(where) if where and self.is_table(path) else None
        with needing_spark():
            write_table(
                str(place_of(path)),
                rows,
                mode="overwrite",
                schema_mode="overwrite" if replace_schema else None,
                predicate=predicate,
            )

    def delete(self, path: str, where: Sequence[Condition]) -> None:
        if any(isinstance(each.value, datetime) for each in where):
            # deltalake's predicates have no literal for a time.
            rows = self.read(path)
            matching = ds.dataset(rows).scanner(columns={"matching": _filter(where)}).to_table().column("matching")
            self.overwrite(path, rows.filter(pc.invert(matching.fill_null(False))))
            return
        with needing_spark():
            self._table(path).delete(_predicate(where))

    def size(self, path: str) -> Size:
        with needing_spark():
            sizes = self._table(path).get_add_actions(flatten=True).column("size_bytes").to_pylist()
        return Size(len(sizes), sum(sizes))

    def compact(self, path: str, large_enough: int, largest: int) -> None:
        with needing_spark():
            for _ in range(_COMPACTION_TRIES):
                with suppress(CommitFailedError), hidden_panics():
                    self._table(path).optimize.compact(
                        target_size=large_enough, writer_properties=WriterProperties(compression="SNAPPY")
                    )
                    return

    def vacuum(self, path: str, keep_hours: int) -> None:
        with needing_spark():
            folder = place_of(path)
            names = self._table(path).vacuum(keep_hours, dry_run=True, enforce_retention_duration=False, full=True)
            # The names are keys of an object store: none leads out of the folder, even in a malicious log.
            for name in names:
                file = folder / name
                file.unlink(missing_ok=True)
                # Hadoop's checksum file.
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def _table(self, path: str) -> DeltaTable:
        table = self.table_at(path)
        if table is None:
            raise NeedsSparkError(f"{path}: no Delta table that can be read without Spark")
        return table


def dataset_of(table: DeltaTable) -> Any:
    """Return the table's rows as an Arrow dataset that ignores the statistics of the log.

    For a few files, skipping by statistics gains nothing; and where statistics have truncated microseconds, it would
    lose rows.
    """
    stored = table.to_pyarrow_dataset()
    if table.metadata().partition_columns:
        return stored
    if not stored.files:
        return ds.dataset(stored.schema.empty_table())
    return ds.dataset(stored.files, schema=stored.schema, format="parquet", filesystem=stored.filesystem)


def plain_schema(path: str) -> pa.Schema | None:
    """Return the schema of a local table whose files have just its rows and columns; None for any other table.

    Files do not have partition columns, and with features of newer protocols they may have deleted rows or other names.
    """
    try:
        table = LocalDelta().table_at(path)
    except (NeedsSparkError, NewerProtocolError, DamagedLogError):
        return None
    if table is None or table.protocol().min_reader_version > 1 or table.metadata().partition_columns:
        return None
    return dataset_of(table).schema


def current_files(path: str) -> set[str] | None:
    """Return the paths of the files of a local table's newest version; None if the table cannot be read here.

    With deletion vectors, files have rows that the table does not have. Such a table has no current files.
    """
    try:
        table = LocalDelta().table_at(path)
    except (NeedsSparkError, DamagedLogError):
        return None
    if table is None:
        return None
    if "deletionVectors" in (table.protocol().reader_features or ()):
        return set()
    names = table.get_add_actions(flatten=True).column("path").to_pylist()
    # The log's names are percent-encoded.
    return {os.path.realpath(place_of(path) / spelled) for name in names for spelled in (name, unquote(name))}


def _table_without(path: str, transaction: Transaction | None) -> DeltaTable | str | None:
    """Return the table, or its path if it may not exist yet.

    Returns None if the table already has the transaction, as after a crash between write and checkpoint.
    """
    if transaction is None:
        return path
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return path
    known = table.transaction_version(transaction.application)
    return None if known is not None and known >= transaction.version else table


def cut_at_intervals(rows: pa.Table, column: str, count: int, width: int) -> Iterator[pa.Table]:
    """Cut rows that are ordered by `column` into about `count` parts.

    Rows with values in the same interval of `width` stay in one part.
    """
    for begin, end in pairwise(interval_borders(rows.column(column).to_numpy(), count, width)):
        yield rows.slice(begin, end - begin)


def interval_borders(values: npt.NDArray[np.int64], count: int, width: int) -> list[int]:
    """Return the borders of about `count` parts of sorted values; values in the same interval stay in one part."""
    changes = np.flatnonzero(np.diff(values // width)) + 1
    wanted = np.arange(1, count) * (-(-len(values) // count)) if len(changes) else np.arange(0)
    return sorted({0, len(values), *changes[np.minimum(np.searchsorted(changes, wanted), len(changes) - 1)].tolist()})


def create_with_files(
    parts: Sequence[Part],
    path: str,
    indexed: Sequence[str],
    metadata: Mapping[str, str],
    schema: pa.Schema,
) -> None:
    """Create a table of one file per part, in their order, written by one process per core.

    Args:
        parts: The rows of each file.
        path: Where the table is created.
        indexed: Columns with a minimum and maximum for each file in the log, for data skipping. Other columns must not
            be configured for skipping: a reader takes a column without statistics for all null.
        metadata: User metadata of the commit.
        schema: The table's columns.
    """
    place = str(place_of(path))
    with needing_spark():
        Path(place).mkdir(parents=True, exist_ok=True)
        _create(place, _written(parts, place, indexed), indexed, metadata, schema)


def create_of_files(
    files: Sequence[Mapping[str, Any]],
    path: str,
    indexed: Sequence[str],
    metadata: Mapping[str, str],
    schema: pa.Schema,
) -> None:
    """Create a table of files that `write_file` has written to another folder, and move them, in their order.

    Args:
        files: Folder, name, size and statistics of each file.
        path: Where the table is created.
        indexed: Columns with statistics; see `create_with_files`.
        metadata: User metadata of the commit.
        schema: The table's columns.
    """
    place = str(place_of(path))
    with needing_spark():
        Path(place).mkdir(parents=True, exist_ok=True)
        moved = [{**file, "name": _file_name(number)} for number, file in enumerate(files)]
        for file, to in zip(files, moved, strict=True):
            shutil.move(os.path.join(file["folder"], file["name"]), os.path.join(place, to["name"]))
        _create(place, _added(moved), indexed, metadata, schema)


def _create(
    place: str, files: list[AddAction], indexed: Sequence[str], metadata: Mapping[str, str], schema: pa.Schema
) -> None:
    create_table_with_add_actions(
        place,
        Schema.from_arrow(schema),
        files,
        mode="error",
        configuration={"delta.dataSkippingStatsColumns": ",".join(indexed)},
        commit_properties=CommitProperties(custom_metadata=dict(metadata)),
    )
    _write_first_checksum(Path(place))


def append_files(
    parts: Sequence[Part],
    path: str,
    indexed: Sequence[str],
    metadata: Mapping[str, str],
    schema: pa.Schema,
    transaction: Transaction | None,
    before: Callable[[], None],
) -> None:
    """Append one file per part to a table. If the table already has the transaction, `before` is called all the same.

    Args:
        parts: The rows of each file.
        path: Folder of the table.
        indexed: Columns with a minimum and maximum per file in the log, for data skipping.
        metadata: User metadata of the commit.
        schema: The table's columns.
        transaction: Id of the write; None for a write that is never repeated.
        before: Called while files are written, before the commit.
    """
    place = str(place_of(path))

    def prepared() -> DeltaTable | str | None:
        table = _table_without(place, transaction)
        before()
        return table

    with needing_spark():
        written, table = _written_meanwhile(prepared, parts, place, indexed)
        if table is None:
            _remove_files(written, place)
            return
        (DeltaTable(table) if isinstance(table, str) else table).create_write_transaction(
            [*written],
            mode="append",
            schema=Schema.from_arrow(schema),
            commit_properties=_commit(transaction, metadata),
        )


def _commit(transaction: Transaction | None, metadata: Mapping[str, str] | None = None) -> CommitProperties:
    return CommitProperties(
        custom_metadata=dict(metadata or {}),
        app_transactions=[_Transaction(*transaction)] if transaction is not None else None,
    )


def _require_json(table: Path) -> None:
    """Raise DamagedLogError if a line of a commit file is not JSON."""
    for commit in sorted((table.absolute() / "_delta_log").glob("*.json")):
        for line in commit.read_bytes().splitlines():
            try:
                json.loads(line)
            except ValueError:
                raise DamagedLogError(f"{commit}: the file is not JSON") from None


def _require_complete_log(table: Path) -> None:
    """Raise OSError if a commit file is empty, because deltalake reads it as a commit without changes."""
    for commit in (table / "_delta_log").glob("*.json"):
        if not commit.stat().st_size:
            raise OSError(f"{commit}: is empty")


def _require_known_protocol(path: str) -> None:
    """Raise NewerProtocolError if the first commit has a newer protocol: deltalake looks only at its checksum file.

    Raises:
        PermissionError: The log cannot be read, so that deltalake would find no table.
    """
    first = place_of(path) / "_delta_log" / f"{0:020}.json"
    with suppress(FileNotFoundError, NotADirectoryError, ValueError), first.open(encoding="utf-8") as lines:
        # The protocol is one of the first actions of a commit that creates a table.
        actions = [json.loads(line) for line in islice(lines, 3) if '"minReaderVersion"' in line]
        version = max((action["protocol"]["minReaderVersion"] for action in actions if "protocol" in action), default=0)
        if version > _READER_VERSION:
            raise NewerProtocolError(path, version)


def _filter(where: Sequence[Condition]) -> Any:
    made = None
    for column, operator, value in where:
        each = _COMPARE[operator](pc.field(column), pa.scalar(value))
        made = each if made is None else made & each
    return made


def _predicate(where: Sequence[Condition]) -> str:
    """Return the conditions as deltalake's SQL, in which strings need escapes only for quotes."""

    def literal(value: Any) -> str:
        if isinstance(value, int):
            return str(value)
        quoted = value.replace("'", "''")
        return f"'{quoted}'"

    return " AND ".join(f"{column} {operator} {literal(value)}" for column, operator, value in where)


def _in_utc(rows: pa.Table) -> pa.Table:
    """Return the rows with all times as microseconds in UTC."""
    utc = pa.timestamp("us", "UTC")
    fields = [field.with_type(utc) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _written_meanwhile(
    prepared: Callable[[], DeltaTable | str | None], parts: Sequence[Part], path: str, indexed: Sequence[str]
) -> tuple[list[AddAction], DeltaTable | str | None]:
    """Write files for a table, and return them with the table, which is the result of `prepared`.

    A single file needs no forked process: it is written while `prepared` runs.
    """
    if len(parts) > 1:
        table = prepared()
        return [] if table is None else _written(parts, path, indexed), table
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(_written, parts, path, indexed)
        try:
            table = prepared()
        except BaseException:
            _remove_files(written.result(), path)
            raise
        return written.result(), table


def _remove_files(files: Iterable[AddAction], path: str) -> None:
    """Remove files that are not in the log of the table at the path."""
    for file in files:
        Path(path, file.path).unlink()


def _written(parts: Sequence[Part], path: str, indexed: Sequence[str]) -> list[AddAction]:
    def work(numbered: tuple[int, Part]) -> Iterator[pa.RecordBatch]:
        number, part = numbered
        rows = part() if callable(part) else part
        # A table without rows has one file all the same.
        if rows.num_rows or len(parts) == 1:
            yield pa.RecordBatch.from_pylist([write_file(rows, number, path, indexed)])

    made = chain.from_iterable(run_parallel(work, list(enumerate(parts)), in_threads=True))
    return _added([row for batch in made for row in batch.to_pylist()])


def _added(files: Iterable[Mapping[str, Any]]) -> list[AddAction]:
    now = int(time.time() * 1000)
    return [AddAction(file["name"], file["size"], {}, now, True, file["stats"]) for file in files]


def _file_name(number: int) -> str:
    return f"part-{number:05}-{uuid.uuid4()}.parquet"


def write_file(rows: pa.Table, number: int, path: str, indexed: Sequence[str]) -> dict[str, Any]:
    """Write rows to a Parquet file in a folder, and return its name, size and statistics for a table's log.

    `number` is part of the file's name; `indexed` are the columns with a minimum and maximum in the statistics.
    """
    name = _file_name(number)
    place = os.path.join(path, name)
    pq.write_table(rows, place, compression="snappy")
    ranges = {column: pc.min_max(rows.column(column)) for column in indexed}
    stats = {
        "numRecords": rows.num_rows,
        "minValues": {column: _as_json(extremes["min"]) for column, extremes in ranges.items()},
        "maxValues": {column: _as_json(extremes["max"]) for column, extremes in ranges.items()},
        "nullCount": {column: rows.column(column).null_count for column in indexed},
    }
    return {"name": name, "size": os.path.getsize(place), "stats": json.dumps(stats)}


def _as_json(value: pa.Scalar) -> Any:
    """Return a value in the form of the log. Times keep microseconds, because truncated bounds would skip rows."""
    plain = value.as_py()
    return plain.isoformat(timespec="microseconds").replace("+00:00", "Z") if isinstance(plain, datetime) else plain


def _write_first_checksum(table: Path) -> None:
    """Write the checksum file that Delta's own writer leaves next to a first commit.

    Spark reads the schema of a table from this file. Without the file it runs a query over the log, which takes most of
    a second in a job that has just started. The file is optional.
    """
    log, first = table / "_delta_log", f"{0:020}"
    actions = [json.loads(line) for line in (log / f"{first}.json").read_text(encoding="utf-8").splitlines()]
    known = {name: [action[name] for action in actions if name in action] for name in ("metaData", "protocol", "add")}
    (metadata,), (protocol,), files = known["metaData"], known["protocol"], known["add"]
    checksum = {
        "txnId": str(uuid.uuid4()),
        "tableSizeBytes": sum(file["size"] for file in files),
        "numFiles": len(files),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "metadata": metadata,
        "protocol": protocol,
    }
    (log / f"{first}.crc").write_text(json.dumps(checksum), encoding="utf-8")
