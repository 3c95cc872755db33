"""Tables of events as streams, and the survey of a trace before its replay."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.backend.delta_store import Condition
from purgatory_udf.common.configuration import INT32_MAX
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.coordinator.assignors import ClusterTopics
from purgatory_udf.rules.groups.group_rows import API_OF
from purgatory_udf.rules.purgatory.clock import PAUSE_EVENTS, Pauses
from purgatory_udf.storage.event_staging import content_commits, content_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Requests that are delayed operations of partitions or topics.
PARTITION_KINDS = ("produce", "fetch", "delete_records", "create_topics", "list_offsets")

_ALL_FILES = 2**31 - 1
# Up to this many events and TopicPartitions, each partition is a separate group, which is the simplest to inspect. A
# group costs Spark 1 to 2 ms per batch, so larger traces are grouped by broker.
_MAX_PARTITION_GROUPED_EVENTS, _MAX_PARTITION_GROUPS = 20_000, 50


def delta_stream(
    spark: SparkSession, path: str, files: int | None = None, since: int | None = None, shrinks: bool = False
) -> DataFrame:
    """Return a Delta table as a stream.

    Args:
        spark: The session that streams.
        path: The table.
        files: Number of files per micro-batch; Delta's default if None.
        since: Version of the table to start from (`startingVersion`). The stream then reads commit by commit, and the
            files of a commit in their order. If None, Delta starts with a snapshot and sorts its files by their
            modification time.
        shrinks: Whether rows may be deleted after they have been read.
    """
    reader = spark.readStream.format("delta")
    if shrinks:
        reader = reader.option("ignoreDeletes", True)
    if since is not None:
        reader = reader.option("startingVersion", since)
    if files is not None:
        reader = reader.option("maxFilesPerTrigger", files)
    return reader.load(path)


def growing_stream(backend: SparkBackend, path: str) -> DataFrame:
    """Return a growing table as a stream, commit by commit.

    If the first commits no longer exist, all current rows form one batch, because compacted files are not in order.
    """
    commits = content_commits(backend, path)
    if commits:
        return delta_stream(backend.spark, path, None, commits[0].version)
    return delta_stream(backend.spark, path, _ALL_FILES)


@dataclass(frozen=True)
class TraceSource:
    """The events of a finished trace: `files` of its files per micro-batch, or all in one if None."""

    path: str
    files: int | None = None

    @property
    def is_one_batch(self) -> bool:
        """Whether all events are in one micro-batch."""
        return self.files is None

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


def survey(backend: Backend, events: str, fetch_max_bytes: int) -> Survey:
    """Count the events of a table, and find its first and last time, and the limits of its fetches.

    `fetch_max_bytes` is the broker's limit of a fetch.
    """

    def any_of(types: object) -> str:
        return ", ".join(f"'{name}'" for name in types)  # type: ignore[attr-defined]

    totals = backend.query(
        "SELECT count(*) AS events, "
        f"count(CASE WHEN type IN ({any_of(PARTITION_KINDS)}) THEN 1 END) AS operations, "
        f"count(CASE WHEN type IN ({any_of(API_OF)}) THEN 1 END) AS of_groups, "
        "count(CASE WHEN type = 'topic' THEN 1 END) AS of_topics, "
        f"count(CASE WHEN type IN ({any_of(PAUSE_EVENTS)}) THEN 1 END) AS of_pauses, "
        "count(CASE WHEN type LIKE 'share_%' THEN 1 END) AS of_shares, "
        "count(CASE WHEN type = 'share_fetch' THEN 1 END) AS share_fetches, "
        "min(time_us) AS first_us, max(time_us) AS last_us FROM events",
        {"events": events},
    ).to_pylist()[0]
    # The limit of a request may leave any number of bytes for its last partitions, unless it is twice the sum of their
    # own limits: a first batch exceeds its partition's limit by less than that.
    limits = backend.query(
        "SELECT max(part.max_bytes) AS most_bytes, "
        "min(CASE WHEN partition_count = 1 THEN least(part.max_bytes, limit_bytes) "
        "WHEN 2 * partition_count * part.max_bytes > limit_bytes THEN 0 ELSE part.max_bytes END) AS least_bytes "
        "FROM (SELECT explode(partitions) AS part, size(partitions) AS partition_count, "
        f"least(coalesce(max_bytes, {INT32_MAX}), {fetch_max_bytes}) AS limit_bytes "
        "FROM events WHERE type = 'fetch') AS parts",
        {"events": events},
    ).to_pylist()[0]
    return Survey(**totals, most_bytes=limits["most_bytes"] or 0, least_bytes=limits["least_bytes"] or 0)


def has_share_groups(backend: Backend, events: str) -> bool:
    """Return whether the trace has events of share groups."""
    store = backend.delta(events)
    return store.count(events, [Condition("type", "=", "share_fetch")]) > 0


def cluster_topics(backend: Backend, events: str) -> ClusterTopics:
    """Return the topics that the trace records with `topic` events."""
    columns = ("type", "time_us", "seq", "topic", "topic_id", "partition_count")
    store, where = backend.delta(events), [Condition("type", "=", "topic")]
    if not store.count(events, where):
        # A table of an older version lacks some of the columns.
        return ClusterTopics()
    return ClusterTopics.from_events(store.read(events, columns, where).to_pylist())


def broker_pauses(backend: Backend, events: str, end_us: int = 0) -> Pauses:
    """Return the pauses of brokers that the trace records. A pause without `resumed` lasts until `end_us`."""
    store, rows = backend.delta(events), []
    for name in PAUSE_EVENTS:
        rows += store.read(events, ("type", "time_us", "seq", "broker"), [Condition("type", "=", name)]).to_pylist()
    return Pauses.from_events(rows, end_us)


class TraceSurvey:
    """The survey of a finished trace. It is made on first use, or in the background after `start`."""

    def __init__(self, backend: Backend, events: str, fetch_max_bytes: int) -> None:
        self._backend, self._events, self._fetch_max_bytes = backend, events, fetch_max_bytes
        self._ahead: Future[Survey] | None = None

    def start(self) -> None:
        """Start the survey in another thread."""
        thread = ThreadPoolExecutor(1)
        self._ahead = thread.submit(self._make)
        thread.shutdown(wait=False)

    @cached_property
    def survey(self) -> Survey:
        """Return the survey, after making it or waiting for the background thread.

        Raises:
            UserError: The table has no events.
        """
        known = self._ahead.result() if self._ahead else self._make()
        if not known.events:
            raise UserError(f"{self._events}: the table has no events; import a trace with ingest")
        return known

    def _make(self) -> Survey:
        return survey(self._backend, self._events, self._fetch_max_bytes)


def grouping_for(backend: Backend, events: str, count: int) -> str:
    """Return the grouping that `auto` selects for a trace of `count` events: `partition` or `broker`."""
    if count > _MAX_PARTITION_GROUPED_EVENTS:
        return "broker"
    partitions = backend.query(
        "SELECT count(*) AS partitions FROM (SELECT DISTINCT part.topic, part.partition "
        "FROM (SELECT explode(partitions) AS part FROM events) AS parts) AS named",
        {"events": events},
    ).to_pylist()[0]["partitions"]
    return "partition" if partitions <= _MAX_PARTITION_GROUPS else "broker"
