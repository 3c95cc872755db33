"""The passes of an import, for a log that is read as a whole or step by step.

    requests ─┬─ fetches, by session ─────┬─► parts ─┬─ facts, by partition ─► timelines ─┐
              ├─ share groups, by group ──┤          └─ operations ───────────────────────┴─► dated operations
              └─ others, one by one ──────┘

A step of a followed log starts from the results of the previous step: the state of a session comes before its new
fetches, carried facts and states of partitions are added to the new facts, and held-back operations to the new ones. A
whole log is one step without a previous one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dataset import Dataset, Step, nulls
from purgatory_udf.contract.tables import REJECTED_EVENTS
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.fact_kinds import Integers
from purgatory_udf.sources.request_log.importing import import_rows, import_tasks, log_reader
from purgatory_udf.sources.request_log.importing.broker_pauses import OverdueOperation
from purgatory_udf.sources.request_log.importing.import_options import Rename
from purgatory_udf.sources.request_log.inferred_settings import remote_fetch_wait
from purgatory_udf.sources.request_log.kafka_protocol import bounds_of, distinct
from purgatory_udf.sources.request_log.logged_request import RECORDED_OUTCOME
from purgatory_udf.sources.request_log.partition_status import ALL_TIME, TimeRange
from purgatory_udf.sources.request_log.share_conversion import SHARE_APIS
from purgatory_udf.storage.run_records import RecordedSetting

PARTITION = ("broker", "topic", "partition")
SESSION = ("broker", "session")
REQUEST = ("file", "line")
# Columns with the offsets of one partition of a produce.
OFFSETS = ("slot", "base", "end")
EVENT_ORDER = [name for name, _ in import_rows.ORDER]

# An operation or a change, each an event to be. The lists are the offsets of a produce, by partition; `remote` is set
# for remote fetches, to 1 if they expired, else to 0.
UNORDERED = pa.schema(
    [
        *import_rows.ORDER,
        *import_rows.EVENT,
        ("recorded", RECORDED_OUTCOME),
        ("slots", pa.list_(pa.int32())),
        ("bases", pa.list_(pa.int64())),
        ("ends", pa.list_(pa.int64())),
        ("remote", pa.int32()),
    ]
)

# The end of a remote read as an event, null if it is not in the log. `expired`: 1 if its fetch has expired, else 0;
# `waited_us`: how long the fetch waited.
REMOTE_READS = pa.schema(
    [
        *import_rows.ORDER,
        ("event", pa.string()),
        ("open", pa.int32()),
        ("expired", pa.int32()),
        ("reads", pa.int64()),
        ("waited_us", pa.int64()),
    ]
)

# How much earlier than most a fetch may expire, in microseconds: the timer counts milliseconds.
_EARLY_US = 2_000

# Computes rows once, by name, for several uses.
Keep = Callable[[str, Dataset], Dataset]
# The name of a file, by its number.
SourceName = Callable[[int], str]


@dataclass(frozen=True)
class Steps:
    """The steps that convert sessions' fetches, share groups and other requests, and build partitions' timelines.

    `part_schema` is the schema of converted requests, and `timeline_schema` that of timelines. `tiered` is whether any
    topics have remote storage.
    """

    sessions: Step
    shares: Step
    others: Step
    timelines: Step
    part_schema: pa.Schema
    timeline_schema: pa.Schema
    tiered: bool = False


@dataclass(frozen=True)
class PreviousStep:
    """The results of the previous step: states of sessions, share groups and partitions, facts, operations."""

    sessions: Dataset
    shares: Dataset
    facts: Dataset
    operations: Dataset


@dataclass(frozen=True)
class PassResults:
    """The results of the passes over an import's rows.

    `operations` have not been written yet; their `at_us` is the time of the first attempt to complete them.
    """

    parts: Dataset
    timelines: Dataset
    operations: Dataset
    reads: Dataset | None


def run_passes(
    requests: Dataset, steps: Steps, keep: Keep, span: TimeRange = ALL_TIME, previous: PreviousStep | None = None
) -> PassResults:
    """Convert requests, build timelines and date operations.

    Args:
        requests: Rows of REQUESTS.
        steps: The steps of the conversion.
        keep: Computes rows once, for several uses.
        span: Time range of the events to write.
        previous: Results of the previous step of a followed log; None for a whole log.
    """
    parts = keep("parts", _parts(requests, steps, previous))
    timelines = keep("timelines", _timelines(parts, steps, previous))
    reads = keep("reads", _remote_reads(timelines)) if steps.tiered else None
    return PassResults(parts, timelines, _dated(parts, timelines, reads, span, previous), reads)


def unordered_events(operations: Dataset, timelines: Dataset, reads: Dataset | None, of_cluster: Dataset) -> Dataset:
    """Return the rows that become events, in any order.

    Args:
        operations: Dated operations.
        timelines: Events of partitions.
        reads: Remote reads with their ends; None without tiered topics.
        of_cluster: Rows of `import_rows.cluster_rows`.
    """
    changes = timelines.where_in("part", [import_rows.CHANGE]).select(*EVENT_ORDER, "event", "change")
    if reads is not None:
        changes = changes.union(reads.where_null("event", null=False).select(*EVENT_ORDER, "event"))
    names = ["at_us" if name == "time_us" else name for name in UNORDERED.names if name != "change"]
    return operations.select(*names).rename("at_us", "time_us").union(changes, of_cluster)


def in_order(unordered: Dataset, source: SourceName, rename: Rename | None = None) -> Dataset:
    """Return all events in their total order, with their position in `task` and `number`.

    Args:
        unordered: Rows of `unordered_events`.
        source: Returns the name of a file by its number.
        rename: Replaces names by pseudonyms, if given.
    """
    return unordered.map_in_order(EVENT_ORDER, import_tasks.finish_events(rename, source), import_rows.FINISHED, "task")


def rejected_requests(
    read: Dataset,
    parts: Dataset,
    events: Dataset,
    run_id: str,
    source: SourceName,
    lines_before: LinesBefore,
    anonymised: bool,
) -> Dataset:
    """Return rows of `rejected_events`: unreadable lines, malformed bodies, and events that the contract rejects.

    Args:
        read: READ rows, of which the bad lines are rejected.
        parts: Converted requests, of which those with malformed bodies are rejected.
        events: Finished events, of which those with a `rule` are rejected.
        run_id: Name of the import.
        source: Returns the name of a file by its number.
        lines_before: Number of lines before each piece of a file; empty for a followed topic.
        anonymised: Whether to leave out texts that contain names.
    """
    # Lines of a followed topic are not cut into pieces.
    place = ["file", *(["piece"] if lines_before else []), "line", "reason", "raw"]
    lines = read.select("row", *place).where_in("row", [log_reader.BAD]).select(*place)
    bodies = parts.where_in("part", [import_rows.BAD]).select("file", "line", "kind", "event")
    refused = events.select("file", "at_line", "reason", "raw", "rule").where_null("rule", null=False)

    def step(line: str, reason: str, raw: str) -> Step:
        return rejected_rows(run_id, source, lines_before, anonymised, line, reason, raw)

    return lines.map_columns(step("line", "reason", "raw"), REJECTED_EVENTS).union(
        bodies.map_columns(step("line", "kind", "event"), REJECTED_EVENTS),
        refused.map_columns(step("at_line", "reason", "raw"), REJECTED_EVENTS),
    )


# Lines before each piece of a file, by (file, piece).
LinesBefore = Mapping[tuple[int, int], int]


def rejected_rows(
    run_id: str, source: SourceName, lines_before: LinesBefore, anonymised: bool, line: str, reason: str, raw: str
) -> Step:
    """Return the step that makes rows of `rejected_events`.

    Args:
        run_id: Name of the import.
        source: Returns the name of a file by its number.
        lines_before: Number of lines before each piece of a file.
        anonymised: Whether to leave out texts that contain names.
        line: Column of the line number.
        reason: Column of the reason.
        raw: Column of the text.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            batch = with_lines(batch, lines_before)
            reasons, texts = batch.column(reason), batch.column(raw)
            if anonymised:
                # The text contains names; the part of a reason before the colon does not.
                reasons = pc.replace_substring_regex(reasons, "(?s):.*", "")
                texts = pa.repeat(pa.scalar(""), batch.num_rows)
            columns = {
                "run_id": pa.repeat(pa.scalar(run_id), batch.num_rows),
                "raw": texts,
                "reason": reasons,
                "source": sources_of(batch.column("file"), source),
                "line": batch.column(line),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in REJECTED_EVENTS.names], schema=REJECTED_EVENTS)

    return run


def with_lines(batch: pa.RecordBatch, lines_before: LinesBefore) -> pa.RecordBatch:
    """Return a batch without `piece`, and with `line` counted from the start of the file."""
    if "piece" not in batch.schema.names:
        return batch
    files, pieces = (batch.column(name).to_numpy() for name in ("file", "piece"))
    width = 1 + int(pieces.max(initial=0))
    used, places = distinct(files.astype(np.int64) * width + pieces, width * (1 + int(files.max(initial=0))))
    before = np.array([lines_before[divmod(number, width)] for number in used.tolist()], np.int64)
    lines = pc.add(batch.column("line"), pa.array(before[places]))
    names = [name for name in batch.schema.names if name != "piece"]
    return pa.RecordBatch.from_arrays([lines if name == "line" else batch.column(name) for name in names], names)


def sources_of(files: pa.Array, source: SourceName) -> pa.Array:
    """Return the file names for an array of file numbers; null for a negative number or null."""
    encoded = files.dictionary_encode()
    names = [
        source(number) if number is not None and number >= 0 else None for number in encoded.dictionary.to_pylist()
    ]
    return pa.array(names, pa.string()).take(encoded.indices)


def counts(*datasets: Dataset) -> Counter[str]:
    """Return the sums of the counts in the rows of these datasets, by cause."""
    total: Counter[str] = Counter()
    for dataset in datasets:
        rows = dataset.select("part", "kind", "numbers").where_in("part", [import_rows.COUNT]).collect()
        for kind, numbers in zip(rows.column("kind").to_pylist(), rows.column("numbers").to_pylist(), strict=True):
            total[kind] += numbers[0]
    return total


def overdue_operations(passed: PassResults) -> list[OverdueOperation]:
    """Return the operations that were answered after their deadline, without fetches that waited for remote storage."""
    columns = ("broker", "file", "line", "numbers")
    late = passed.parts.select("part", *columns).where_in("part", [import_rows.OVERDUE]).select(*columns)
    if passed.reads is not None:
        late = late.sql(
            """
            SELECT o.broker, o.file, o.line, o.numbers FROM {rows} AS o
            LEFT JOIN (SELECT DISTINCT file, line FROM {reads}) AS r ON r.file = o.file AND r.line = o.line
            WHERE r.file IS NULL
            """,
            late.schema,
            reads=passed.reads.select("file", "line"),
        )
    rows = late.collect()
    places = zip(*(rows.column(name).to_pylist() for name in ("broker", "file", "line")), strict=True)
    times = rows.column("numbers").to_pylist()
    return sorted(OverdueOperation(*place, *numbers) for place, numbers in zip(places, times, strict=True))


def count_reads(reads: Dataset | None, report: Report) -> None:
    """Add the numbers of remote reads to the report, by what the log shows of their end."""
    if reads is None:
        return
    schema = pa.schema(
        [("together", pa.int64()), ("halfway", pa.int64()), ("unended", pa.int64()), ("total", pa.int64())]
    )
    counted = reads.select("open", "expired", "reads").sql(
        """
        SELECT count_if(r.expired = 0 AND r.reads > 1) AS together,
            count_if(r.expired = 1 AND r.open = 0) AS halfway,
            count_if(r.expired = 1 AND r.open = 1) AS unended, count(*) AS total
        FROM {rows} AS r
        """,
        schema,
    )
    (row,) = counted.collect().to_pylist()
    for cause in ("together", "halfway", "unended"):
        report.count(f"remote_reads_{cause}", row[cause])
    report.count("remote_reads", row["total"])


def remote_fetch_wait_shown(reads: Dataset | None) -> list[RecordedSetting]:
    """Return the `remote.fetch.max.wait.ms` that expired fetches show, as a list of at most one setting."""
    if reads is None:
        return []
    expired = reads.where_in("expired", [1]).select("file", "line", "waited_us")
    shown = expired.sql(
        """
        SELECT percentile_disc(0.1) WITHIN GROUP (ORDER BY f.us) / 1e3 AS low,
            percentile_disc(0.5) WITHIN GROUP (ORDER BY f.us) / 1e3 AS median, count(*) AS fetches
        FROM (SELECT max(r.waited_us) AS us FROM {rows} AS r GROUP BY r.file, r.line) AS f
        """,
        pa.schema([("low", pa.float64()), ("median", pa.float64()), ("fetches", pa.int64())]),
    )
    (row,) = shown.collect().to_pylist()
    setting = remote_fetch_wait(row["low"], row["median"], row["fetches"]) if row["fetches"] else None
    return [setting] if setting else []


def _parts(requests: Dataset, steps: Steps, previous: PreviousStep | None) -> Dataset:
    fetches, shares = requests.where_in("api", ["FETCH"]), requests.where_in("api", SHARE_APIS)
    if previous is not None:
        fetches, shares = fetches.union(previous.sessions), shares.union(previous.shares)
    # The state of a session sorts before its fetches, because it has no time.
    order = [name for name in ("start_us", "file", "piece", "line") if name in requests.schema.names]
    others = requests.where_null("session")
    by_session = fetches.map_groups(SESSION, order, steps.sessions, steps.part_schema)
    by_group = shares.map_groups(("session",), order, steps.shares, steps.part_schema)
    return by_session.union(by_group, others.map(steps.others, steps.part_schema))


def _timelines(parts: Dataset, steps: Steps, previous: PreviousStep | None) -> Dataset:
    columns = [*PARTITION, "part", "packed", *(["event", "settled"] if previous is not None else [])]
    facts = parts.select(*columns).where_in("part", [import_rows.FACT])
    if previous is not None:
        facts = previous.facts.union(facts)
    return facts.select(*columns).map_groups(PARTITION, (), steps.timelines, steps.timeline_schema)


def _remote_reads(timelines: Dataset) -> Dataset:
    """Return the remote reads with the time of their end (REMOTE_READS).

    A fetch has expired if one of its reads is open and it waited as long as fetches with only open reads. The other
    reads of an expired fetch are assumed to have ended halfway through its wait. The reads of other fetches are
    assumed to have ended with the response; up to Kafka 4.1 a fetch starts only one read.
    """
    rows = timelines.where_in("part", [import_rows.REMOTE_READ]).select(*EVENT_ORDER, "event", "base", "end")
    order = ", ".join(f"r.{name}" for name in EVENT_ORDER if name != "time_us")
    return rows.sql(
        f"""
        WITH fetches AS (
            SELECT r.broker, r.file, r.line, max(r.base) AS any_open, min(r.base) AS all_open,
                max(r.end) AS waited_us, count(*) AS reads
            FROM {{rows}} AS r GROUP BY r.broker, r.file, r.line
        ),
        limits AS (
            SELECT broker, percentile_disc(0.1) WITHIN GROUP (ORDER BY waited_us) - {_EARLY_US} AS least_us
            FROM fetches WHERE all_open = 1 GROUP BY broker
        ),
        ends AS (
            SELECT f.broker, f.file, f.line, f.reads,
                CASE WHEN f.any_open = 1 AND f.waited_us >= coalesce(l.least_us, 0) THEN 1 ELSE 0 END AS expired
            FROM fetches AS f LEFT JOIN limits AS l ON l.broker = f.broker
        )
        SELECT CASE WHEN e.expired = 1 THEN r.time_us - CAST(floor(r.end / 2) AS BIGINT) ELSE r.time_us END AS time_us,
            {order}, CASE WHEN e.expired = 1 AND r.base = 1 THEN NULL ELSE r.event END AS event,
            CAST(r.base AS INT) AS open, CAST(e.expired AS INT) AS expired, e.reads, r.end AS waited_us
        FROM {{rows}} AS r JOIN ends AS e ON e.broker = r.broker AND e.file = r.file AND e.line = r.line
        """,
        REMOTE_READS,
    )


def _dated(
    parts: Dataset, timelines: Dataset, reads: Dataset | None, span: TimeRange, previous: PreviousStep | None
) -> Dataset:
    """Return operations with the time at which each is first tried, and the outcome of remote fetches.

    A produce is tried when all of its partitions have been appended, at the offsets that their timelines found.
    """
    operations = parts.where_in("part", [import_rows.OPERATION])
    if previous is not None:
        operations = previous.operations.union(operations)
    fetches = None
    if reads is None:
        # No fetch has offsets or another time than its own, and joining many nested rows takes long.
        fetches = operations.where_in("kind", ["fetch"])
        if previous is None:
            fetches = fetches.rename("time_us", "at_us")
        else:
            with_time = fetches.schema.append(pa.field("at_us", pa.int64()))
            fetches = fetches.map_columns(partial(_tried_since, span.from_us), with_time)
        operations = operations.where_in("kind", ["fetch"], within=False)
    unneeded = {"numbers", "packed", *(["fetch"] if fetches is not None else [])}
    names = [name for name in operations.schema.names if name not in unneeded]
    lists = [UNORDERED.field(name) for name in ("slots", "bases", "ends", "remote")]
    schema = pa.schema([*(operations.schema.field(name) for name in names), ("at_us", pa.int64()), *lists])
    produced = timelines.where_in("part", [import_rows.PRODUCED]).select(*REQUEST, "part", "time_us", *OFFSETS)
    of_requests = [produced] if reads is None else [produced, reads.select(*REQUEST, "expired")]
    rows = operations.select(*names).union(*of_requests)
    dated = rows.map_groups(REQUEST, (), partial(_with_offsets, schema, span.from_us), schema)
    return dated if fetches is None else dated.computed_if_small().union(fetches)


def _with_offsets(schema: pa.Schema, from_us: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield operations with `at_us`, not before `from_us`, and with what other rows of their requests show.

    Args:
        schema: Columns of the operations.
        from_us: The earliest time of an operation.
        batches: Operations, offsets of produces, and remote reads, in the order of their requests.
    """
    held: list[pa.RecordBatch] = []
    for batch in batches:
        joined = pa.Table.from_batches([*held, batch]).combine_chunks()
        (rows,) = joined.to_batches() or [batch]
        # The rows of the last request may continue in the next batch.
        first_of_last = int(_firsts_of_requests(rows)[-1]) if rows.num_rows else 0
        yield _joined(rows.slice(0, first_of_last), schema, from_us)
        held = [rows.slice(first_of_last)]
    for rows in held:
        yield _joined(rows, schema, from_us)


def _firsts_of_requests(rows: pa.RecordBatch) -> Integers:
    """Return the numbers of the first rows of each request."""
    is_first = np.ones(rows.num_rows, bool)
    file, line = (rows.column(name).to_numpy() for name in REQUEST)
    is_first[1:] = (file[1:] != file[:-1]) | (line[1:] != line[:-1])
    return np.flatnonzero(is_first)


def _joined(rows: pa.RecordBatch, schema: pa.Schema, from_us: int) -> pa.RecordBatch:
    """Return the operations of whole requests; see `_with_offsets`."""
    firsts = _firsts_of_requests(rows)
    request = np.repeat(np.arange(len(firsts)), np.diff([*firsts, rows.num_rows]))
    part = rows.column("part")
    places, produced = (
        np.flatnonzero(pc.equal(part, kind).fill_null(False)) for kind in (import_rows.OPERATION, import_rows.PRODUCED)
    )
    operations, of_operation = rows.take(pa.array(places)), request[places]
    time_us = rows.column("time_us").fill_null(from_us).to_numpy()
    tried_us = np.full(len(firsts), from_us)
    np.maximum.at(tried_us, request[produced], time_us[produced])
    # A request may have several operations, which all get the offsets of all of its partitions.
    counts = np.bincount(request[produced], minlength=len(firsts))
    begins = (np.cumsum(counts) - counts)[of_operation]
    bounds = bounds_of(counts[of_operation])
    chosen = produced[np.repeat(begins - bounds[:-1], np.diff(bounds)) + np.arange(bounds[-1])]
    has_none = pa.array(counts[of_operation] == 0)
    found: dict[str, pa.Array] = {"at_us": pa.array(np.maximum(tried_us[of_operation], time_us[places]))}
    for name, column in zip(("slots", "bases", "ends"), OFFSETS, strict=True):
        values = rows.column(column).take(pa.array(chosen))
        found[name] = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values, mask=has_none)
    if "expired" in rows.schema.names:
        expired = rows.column("expired").fill_null(-1).to_numpy()
        outcome = np.full(len(firsts), -1)
        np.maximum.at(outcome, request, expired)
        of_fetch = outcome[of_operation]
        found["remote"] = pa.array(of_fetch, pa.int32(), mask=of_fetch < 0)
    columns = [
        found[field.name]
        if field.name in found
        else operations.column(field.name)
        if field.name in operations.schema.names
        else nulls(len(operations), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _tried_since(from_us: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield fetches with `at_us`, the time at which each is first tried, but not before `from_us`."""
    for batch in batches:
        yield batch.append_column("at_us", pc.max_element_wise(batch.column("time_us"), from_us))
