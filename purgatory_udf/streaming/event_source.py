"""The table of events that a run replays: its survey, and its rows as a stream."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.backend.delta_store import Condition, Identity
from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import local_path
from purgatory_udf.contract import CHANGE_FIELDS, EVENT_STRUCTS, TYPE
from purgatory_udf.contract.event_checks import REQUIRED
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.groups.group_rows import API_OF
from purgatory_udf.rules.purgatory.clock import PAUSE_EVENTS, Pauses
from purgatory_udf.storage.event_staging import content_commits, content_version, stage_events
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.stateful_adapter import AnyRules, pack_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

# Requests that are delayed operations of partitions or topics.
PARTITION_KINDS = ("produce", "fetch", "delete_records", "create_topics", "list_offsets")

_ALL_FILES = 2**31 - 1
_POLL_SECONDS = 1.0
# Up to this many events and TopicPartitions, each partition is a separate group, which is the simplest to inspect. A
# group costs Spark 1 to 2 ms per batch, so larger traces are grouped by broker.
_MAX_PARTITION_GROUPED_EVENTS, _MAX_PARTITION_GROUPS = 20_000, 50


def delta_stream(spark: SparkSession, path: str, files: int | None = None, since: int | None = None) -> DataFrame:
    """Return a Delta table as a stream.

    Args:
        spark: The session that streams.
        path: The table.
        files: Number of files per micro-batch; Delta's default if None.
        since: Version of the table to start from (`startingVersion`). The stream then reads commit by commit, and the
            files of a commit in their order. If None, Delta starts with a snapshot and sorts its files by their
            modification time.
    """
    reader = spark.readStream.format("delta")
    if since is not None:
        reader = reader.option("startingVersion", since)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    return reader.load(path)


# Rows of a table that `read_blocks` yields, the same as of Spark's Arrow batches: each costs one row per group.
_ROWS_PER_TABLE = 100_000


def file_chunk_function(
    rules: AnyRules, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow` that packs the events of file blocks into input chunks."""
    columns = rules.input_columns(schema.names)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack_tables(rules, read_blocks(batches, schema, columns))

    return run


def read_blocks(batches: Iterable[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read the rows of files that Spark only counts: the worker of a task reads what the task was to read.

    Spark would convert each event, with its nested columns, to a row and then to Arrow, for ten times the CPU time.

    Args:
        batches: For each row, the URI of its file and the start of the task's block in it, in bytes.
        schema: The schema of the table.
        columns: The columns to read.
    """
    tables: list[pa.Table] = []
    for file, start, rows in _blocks(batches):
        for batch in _block_rows(unquote(file.removeprefix("file:")), start, rows, schema, columns):
            tables.append(pa.Table.from_batches([batch]))
            if sum(map(len, tables)) >= _ROWS_PER_TABLE:
                yield pa.concat_tables(tables)
                tables = []
    if tables:
        yield pa.concat_tables(tables)


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, int]]:
    """Yield file, start and number of rows of each block. The rows of a block are consecutive."""
    runs = chain.from_iterable(map(_runs, batches))
    for (file, start), same in groupby(runs, key=itemgetter(0, 1)):
        yield file, start, sum(rows for *_, rows in same)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[str, int, int]]:
    ends = np.unique(np.concatenate([pc.run_end_encode(column).run_ends for column in batch.columns]))
    for begin, end in pairwise([0, *ends.tolist()]):
        yield batch.column(0)[begin].as_py(), batch.column(1)[begin].as_py(), end - begin


def _block_rows(
    path: str, start: int, rows: int, schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the row groups that a block has.

    Parquet assigns a row group to the block in which its middle is. The number of rows shows the end of the block.
    """
    fragment = ds.ParquetFileFormat().make_fragment(path, LocalFileSystem())
    file: pq.FileMetaData = fragment.metadata
    if start or rows != file.num_rows:
        fragment = fragment.subset(row_group_ids=_row_groups(file, start, rows, path))
    yield from fragment.to_batches(
        schema, columns=[*columns], batch_size=_ROWS_PER_TABLE, batch_readahead=0, use_threads=False
    )


def _row_groups(file: pq.FileMetaData, start: int, rows: int, path: str) -> list[int]:
    """Return the numbers of the row groups with the `rows` rows of the block that starts at byte `start`."""
    groups, found = [], 0
    for number in range(file.num_row_groups):
        group = file.row_group(number)
        parts = [group.column(part) for part in range(group.num_columns)]
        begin = parts[0].dictionary_page_offset or parts[0].data_page_offset
        if found < rows and begin + sum(part.total_compressed_size for part in parts) // 2 >= start:
            groups.append(number)
            found += group.num_rows
    if found != rows:
        raise OSError(f"{path}: Spark reads {rows:,} rows from byte {start:,} on, and the row groups have {found:,}")
    return groups


@dataclass(frozen=True)
class TraceSource:
    """The events of a finished trace: `files` of its files per micro-batch, or all in one if None."""

    path: str
    files: int | None = None

    @property
    def is_one_batch(self) -> bool:
        """Whether all events are in one micro-batch."""
        return self.files is None

    def read(self, backend: Backend) -> pa.Table:
        """Return all events."""
        return backend.delta(self.path).read(self.path)

    def file_schema(self, backend: SparkBackend) -> pa.Schema | None:
        """Return the schema by which Python workers can read the files (`read_blocks`); None if only Spark can."""
        from purgatory_udf.backend.local_delta import plain_schema

        return plain_schema(self.path) if backend.is_on_this_machine(self.path) else None

    def stream(self, backend: SparkBackend) -> DataFrame:
        """Return the events as a streaming DataFrame, with the configured number of files per micro-batch."""
        if self.files is None:
            # Delta reads a single commit from the log; it sorts the files of a snapshot with Spark queries.
            commits = content_commits(backend, self.path)
            return delta_stream(backend.spark, self.path, _ALL_FILES, commits[0].version if len(commits) == 1 else None)
        return delta_stream(backend.spark, self.path, self.files, content_version(backend, self.path))


@dataclass(frozen=True)
class Survey:
    """Size and time span of a trace.

    Attributes:
        events: Number of events.
        operations: Number of requests that may wait.
        of_groups: Number of events of consumer groups.
        first_us: Time of the first event in epoch microseconds; None without events.
        last_us: Time of the last event.
        most_bytes: The greatest limit of a partition's read by any fetch.
        least_bytes: The smallest such limit.
        of_topics: Number of `topic` events.
        of_pauses: Number of pauses of brokers.
        of_shares: Number of events of share groups.
        share_fetches: Number of share fetches.
        watches: Number of partitions of all events.
    """

    events: int
    operations: int
    of_groups: int
    first_us: int | None
    last_us: int | None
    most_bytes: int
    least_bytes: int
    of_topics: int = 0
    of_pauses: int = 0
    of_shares: int = 0
    share_fetches: int = 0
    watches: int = 0


class EventTable:
    """The table of events that a run replays. Its survey is made on first use, or in the background after `start`.

    Attributes:
        path: Folder of the table.
    """

    def __init__(self, backend: Backend, path: str, fetch_max_bytes: int = INT32_MAX) -> None:
        """Open a table, which may not exist yet.

        Args:
            backend: Backend that reads the table.
            path: Folder of the table.
            fetch_max_bytes: The broker's limit of a fetch.
        """
        self.path = path
        self._backend, self._store, self._fetch_max_bytes = backend, backend.delta(path), fetch_max_bytes
        self._ahead: Future[Survey] | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a Delta table at the path."""
        return self._store.is_table(self.path)

    def require(self) -> None:
        """Raise `UserError` unless there is a table of events."""
        place = local_path(self.path)
        if place is not None and place.is_file():
            raise UserError(f"{self.path}: is a file, not a table of events; import it with ingest")
        if not self.exists:
            raise UserError(f"{self.path}: not a Delta table of events; create one with ingest")
        columns = self._store.columns(self.path)
        missing = [name for name in ("seq", "time_us", "type") if name not in columns]
        if missing:
            raise UserError(f"{self.path}: not a table of events: it has no column {missing[0]}")

    def require_complete_rows(self) -> None:
        """Raise `UserError` for the first row without a value that imports give to every event of its type."""
        columns = self._store.columns(self.path)
        lacking = "CASE " + " ".join(f"WHEN {without} THEN '{name}'" for name, without in _required_values(columns))
        found = ", ".join(name if name in columns else f"NULL AS {name}" for name in ("seq", "type", "source", "line"))
        rows = self._query(
            f"SELECT * FROM (SELECT {found}, {lacking} END AS lacks FROM events AS e) AS checked "
            "WHERE lacks IS NOT NULL ORDER BY seq LIMIT 1"
        )
        for row in rows:
            place = f" ({row['source']}, line {row['line']})" if row["source"] else ""
            raise UserError(
                f"{self.path}: the {row['type'] or 'event'} with seq {row['seq']}{place} has no {row['lacks']}; "
                "import the trace with ingest, which checks its events"
            )

    def wait(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until the table exists: `ingest --follow` creates it with its first batch."""
        if self.exists:
            return
        log.info("waiting for the table %s, which ingest --follow creates; Ctrl-C stops waiting", self.path)
        while not self.exists:
            sleep(_POLL_SECONDS)

    def wait_for_first_event(self) -> int:
        """Wait for the first event and return its time in epoch milliseconds."""
        while True:
            first_us = self._query("SELECT min(time_us) AS first_us FROM events")[0]["first_us"]
            if first_us is not None:
                return int(first_us) // 1000
            log.info("waiting for the first event in %s", self.path)
            time.sleep(_POLL_SECONDS)

    def identity(self) -> Identity:
        """Return the identity of the table."""
        return self._store.identity(self.path)

    def start(self) -> None:
        """Start the survey in another thread."""
        thread = ThreadPoolExecutor(1)
        self._ahead = thread.submit(self._survey)
        thread.shutdown(wait=False)

    @cached_property
    def survey(self) -> Survey:
        """Return size and time span of a finished trace, after reading it or waiting for the background thread.

        Raises:
            UserError: The table has no events.
        """
        known = self._ahead.result() if self._ahead else self._survey()
        if not known.events:
            raise UserError(f"{self.path}: the table has no events; import a trace with ingest")
        return known

    def _survey(self) -> Survey:
        # The limit of a request may leave any number of bytes for its last partitions, unless it is twice the sum of
        # their own limits: a first batch exceeds its partition's limit by less than that.
        (row,) = self._query(
            "SELECT count(*) AS events, "
            f"count(CASE WHEN type IN ({_quoted(PARTITION_KINDS)}) THEN 1 END) AS operations, "
            f"count(CASE WHEN type IN ({_quoted(API_OF)}) THEN 1 END) AS of_groups, "
            "count(CASE WHEN type = 'topic' THEN 1 END) AS of_topics, "
            f"count(CASE WHEN type IN ({_quoted(PAUSE_EVENTS)}) THEN 1 END) AS of_pauses, "
            "count(CASE WHEN type LIKE 'share_%' THEN 1 END) AS of_shares, "
            "count(CASE WHEN type = 'share_fetch' THEN 1 END) AS share_fetches, "
            "min(time_us) AS first_us, max(time_us) AS last_us, "
            "coalesce(sum(size(limits)), 0) AS watches, "
            "coalesce(max(CASE WHEN type = 'fetch' THEN array_max(limits) END), 0) AS most_bytes, "
            "coalesce(min(CASE WHEN type <> 'fetch' THEN NULL "
            "WHEN size(limits) = 1 THEN least(array_min(limits), limit_bytes) "
            "WHEN 2 * size(limits) * array_max(limits) > limit_bytes THEN 0 ELSE array_min(limits) END), 0) "
            "AS least_bytes "
            "FROM (SELECT type, time_us, fields(partitions, 'max_bytes') AS limits, "
            f"least(coalesce(max_bytes, {INT32_MAX}), {self._fetch_max_bytes}) AS limit_bytes FROM events) AS limited"
        )
        return Survey(**row)

    def has_share_groups(self) -> bool:
        """Return whether the table has fetches of share groups."""
        return self._store.count(self.path, [Condition("type", "=", "share_fetch")]) > 0

    def topics(self) -> ClusterTopics:
        """Return the topics that the trace records with `topic` events."""
        columns = ("type", "time_us", "seq", "topic", "topic_id", "partition_count")
        where = [Condition("type", "=", "topic")]
        if not self._store.count(self.path, where):
            # A table of an older version lacks some of the columns.
            return ClusterTopics()
        return ClusterTopics.from_events(self._store.read(self.path, columns, where).to_pylist())

    def pauses(self, end_us: int = 0) -> Pauses:
        """Return the pauses of brokers that the trace records. A pause without `resumed` lasts until `end_us`."""
        columns, rows = ("type", "time_us", "seq", "broker"), []
        for name in PAUSE_EVENTS:
            rows += self._store.read(self.path, columns, [Condition("type", "=", name)]).to_pylist()
        return Pauses.from_events(rows, end_us)

    def grouping(self) -> str:
        """Return the grouping that `auto` selects for the trace: `partition` or `broker`."""
        if self.survey.events > _MAX_PARTITION_GROUPED_EVENTS:
            return "broker"
        partitions = self._query(
            "SELECT count(*) AS partitions FROM (SELECT DISTINCT part.topic, part.partition "
            "FROM (SELECT explode(partitions) AS part FROM events) AS parts) AS named"
        )[0]["partitions"]
        return "partition" if partitions <= _MAX_PARTITION_GROUPS else "broker"

    def most_watches(self) -> int:
        """Return an upper bound of the number of watches, from the partitions of the events.

        File sizes are not enough, because requests that repeat the same partitions compress well.
        """
        return self.survey.watches

    def batches(self, layout: Layout, batch_events: int) -> TraceSource:
        """Return the events as a source of micro-batches of about `batch_events`, after sorting them if necessary."""
        assert isinstance(self._backend, SparkBackend)
        files = self.identity().files
        return TraceSource(*stage_events(self._backend, self.path, layout, self.survey.events, files, batch_events))

    def growing_stream(self) -> DataFrame:
        """Return the growing table as a stream, commit by commit.

        If the first commits no longer exist, all current rows form one batch, because compacted files are not in order.
        """
        assert isinstance(self._backend, SparkBackend)
        commits = content_commits(self._backend, self.path)
        if commits:
            return delta_stream(self._backend.spark, self.path, None, commits[0].version)
        return delta_stream(self._backend.spark, self.path, _ALL_FILES)

    def _query(self, text: str) -> list[dict[str, Any]]:
        return self._backend.totals(text, {"events": self.path}).to_pylist()


def _required_values(columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield those of the `columns` in which some events have a value, and the condition for rows that lack it."""
    yield from ((name, f"{name} IS NULL") for name in ("time_us", "seq", "type") if name in columns)
    kinds: dict[str, list[str]] = defaultdict(list)
    shapes = [(TYPE, shape.kind, shape) for shape in EVENT_STRUCTS.values()]
    shapes += [("change", change, shape) for change, shape in CHANGE_FIELDS.items()]
    for column, kind, shape in shapes:
        for field in shape.fields:
            # A replay can do without the ids of requests, but share fetches need their limit, which has a default.
            is_needed = field.default is REQUIRED or field.name == "max_records"
            if is_needed and field.name in columns and field.name not in ("time_us", "request_id"):
                kinds[field.name].append(f"{column} = '{kind}'")
    kinds["change"] = [f"{TYPE} = 'partition'"]
    yield from ((name, f"e.{name} IS NULL AND ({' OR '.join(of)})") for name, of in kinds.items())


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
