"""The comparison of each recorded operation with its replay: the rows of the table `fidelity`, and the report's tables.

The queries of `sql/fidelity` compute the rows in these steps:

| query | rows |
|---|---|
| views/operation_pairs | recorded operations with their replayed outcomes |
| fidelity/timer_parts | the lateness of expirations, from which `timer_phases` estimates each timer's phase |
| views/timed_pairs | the pairs, with their lateness corrected by that phase |
| views/disagreements | pairs with different outcomes, and their circumstances |
| views/disagreement_causes | the cause of each disagreement, one of `CAUSES` |
| fidelity/operations | rows of `fidelity` for operations with the id of their event |
| fidelity/groups | rows of `fidelity` for joins, syncs and heartbeats at the old group coordinator |
| fidelity/new_coordinator | rows of `fidelity` for all requests to the new group coordinator |

Kafka counts a timeout from the start of the millisecond of its monotonic clock in which the operation entered the
timer: an operation that starts late in that millisecond waits less. The phase is the offset between these milliseconds
and those of the log. It is not logged, but it is constant while the broker runs, and the lateness of expired operations
shows it as a sawtooth: the later in a millisecond an operation starts, the earlier it expires, up to the next
millisecond. After this correction a spread of one millisecond remains, because the reaper also sleeps for whole
milliseconds.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.answers.broker_readings import ExpirationCount
from purgatory_udf.answers.operation_story import moment
from purgatory_udf.common.console import Table, request_label
from purgatory_udf.contract.tables import COMMENTED_TABLES, FIDELITY, TABLES
from purgatory_udf.storage.run_records import (
    CONSUMER_SESSION,
    INITIAL_DELAY,
    LOOKUP_TIMEOUT,
    MAX_SESSION,
    MIN_SESSION,
    REMOTE_FETCH_WAIT,
    Contradiction,
)

if TYPE_CHECKING:
    from purgatory_udf.answers.run_tables import RunTables

AT_ONCE, COMPLETED, EXPIRED = "at_once", "completed", "expired"
# The replay has no end of the operation.
NONE = "none"

# A request log has times of whole requests. It does not record when, within the handling of a request, the broker
# appended the records, recorded a follower's offset or checked a waiting fetch. So most disagreements are between
# `at_once` and `completed`.
CAUSES = {
    "not_replayed": "the replay has no outcome of the operation: it left open operations open (--no-drain), "
    "or had other events",
    "session_before_the_log": "a fetch of a session that is older than the log: some of its partitions are unknown",
    "partition_error": "answered with an error: the log does not contain the broker's metadata",
    "coordinator_append": "decided by an append without a PRODUCE line; its time is that of its batch or request",
    "stamped_late": "answered by another thread before the end of its handling was recorded: it did wait",
    "inside_handling": "the deciding request was being handled at the first check of this one: the log does not show "
    "which came first",
    "near_the_deadline": "the deciding change came within a few milliseconds of the deadline",
    "dated_apart": "the deciding change and the first check differ by a few milliseconds, within the log's precision",
    "change_unseen": "the log does not contain the deciding change, or has another time for it",
    "other_coordinator": "answered by the coordinator of Kafka 4, but replayed by the rules of the old one",
    "other_setting": "replayed with another setting than the recording shows",
    "group_state": "the group was in another state when the request arrived",
}

# Kinds of operations with the id of their event, in the order of the report. Operations of groups are compared by
# their responses.
BY_ID = (
    "consumer fetch",
    "follower fetch",
    "produce acks=-1",
    "produce acks=1",
    "produce acks=0",
    "transaction markers",
    "delete_records",
    "create_topics",
    "remote fetch",
    "list_offsets",
    "share fetch",
)
Rows = Sequence[Mapping[str, Any]]

ALL = "all"
CLASSES = (AT_ONCE, COMPLETED, EXPIRED)
# Operations of each kind in the table of the worst differences.
WORST = 3


# The kinds of operations that a setting decides.
_CLASSIC_GROUPS = ("join_group", "sync_group", "heartbeat", "leave_group", "offset_commit")
_DECIDES = {
    INITIAL_DELAY: _CLASSIC_GROUPS,
    MIN_SESSION: _CLASSIC_GROUPS,
    MAX_SESSION: _CLASSIC_GROUPS,
    CONSUMER_SESSION: ("consumer_group_heartbeat", "offset_commit"),
    REMOTE_FETCH_WAIT: ("remote fetch",),
    LOOKUP_TIMEOUT: ("list_offsets",),
}


def settings_table(others: Iterable[Contradiction]) -> Table:
    """Return the table of settings with which the replay contradicts the recording."""
    return Table(
        "Settings of the replay that contradict the recording",
        ("setting", "replayed with", "recorded", "requests"),
        [(each.key, str(each.value), str(each.recorded.value), each.recorded.requests) for each in others],
    )


def write_comparison(tables: RunTables, others: Iterable[Contradiction] = ()) -> dict[int, float]:
    """Write the table `fidelity` and make it available to queries.

    Args:
        tables: Tables of the replay.
        others: Settings of the replay that contradict the recording. They are the cause of disagreements of the kinds
            of operations that depend on them.

    Returns:
        The phase of each broker's timer in milliseconds, for brokers with a clear one.
    """
    # The events of the import, which also wrote `recorded`.
    tables.add_table("events", tables.layout.table("events"), TABLES["events"])
    phases = timer_phases(tables.rows("fidelity/timer_parts", parts=PARTS))
    add_phases(tables, phases)
    queries = ["fidelity/operations"]
    if tables.has("group_transitions"):
        queries.append("fidelity/groups")
    if tables.has("group_disagreements"):
        queries.append("fidelity/new_coordinator")
    kinds = sorted({kind for each in others for kind in _DECIDES[each.recorded.name]})
    columns = ", ".join(_with_other_setting(kinds) if name == "cause" and kinds else name for name in _COLUMNS)
    rows = " UNION ALL ".join(f"(SELECT {columns} FROM ({tables.text(name)}) rows)" for name in queries)
    path = tables.layout.table("fidelity")
    run_id = {"run_id": tables.run.run_id}
    tables.database.save(rows, path, COMMENTED_TABLES["fidelity"], constants=run_id)
    tables.add_table("fidelity", path, FIDELITY)
    return phases


def _with_other_setting(kinds: Sequence[str]) -> str:
    """Return the SQL expression of the column `cause`: a contradicting setting for disagreements of these kinds."""
    listed = ", ".join(f"'{kind}'" for kind in kinds)
    return f"CASE WHEN cause IS NOT NULL AND kind IN ({listed}) THEN 'other_setting' ELSE cause END AS cause"


_COLUMNS = [name for name in FIDELITY.names if name != "run_id"]


def add_phases(tables: RunTables, phases: dict[int, float]) -> None:
    """Make the phases of timers, in milliseconds by broker, available to queries as the table `timer_phases`."""
    schema = pa.schema([("broker", pa.int32()), ("phase_ms", pa.float64())])
    tables.add_rows("timer_phases", pa.table([list(phases), list(phases.values())], schema=schema))


# Number of parts of a millisecond.
PARTS = 20
# Minimum number of operations. Random lateness of 500 operations on a busy host may look like a sawtooth.
FEWEST = 1_000
# Minimum amplitude, relative to that of the whole sawtooth. Recordings with a sawtooth have 0.84 to 0.98; with shuffled
# starts, a thousand operations have at most 0.44.
CLEAR = 0.5
# Amplitude of the first harmonic of a sawtooth of height 1.
_SAWTOOTH_AMPLITUDE = 1 / (2 * math.pi)


def phase_of(late_ms: Sequence[float]) -> float | None:
    """Return the phase in milliseconds, from 0 to 1, or None if there is no clear sawtooth.

    `late_ms` is the mean lateness of a broker's expired operations, by the part of the millisecond in which they
    started.
    """
    angles = (-2j * math.pi * (part + 0.5) / len(late_ms) for part in range(len(late_ms)))
    harmonic = sum(late * cmath.exp(angle) for late, angle in zip(late_ms, angles, strict=True)) / len(late_ms)
    if abs(harmonic) < CLEAR * _SAWTOOTH_AMPLITUDE:
        return None
    return (cmath.phase(harmonic) / (2 * math.pi) + 0.25) % 1


def timer_phases(rows: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return the phase in milliseconds of each broker that has one; `rows` are those of `fidelity/timer_parts`.

    A log with whole milliseconds gives no phase: the start of an operation is the time of its line minus the wait, so
    the starts would agree with any wait.
    """
    estimates = {}
    for broker, of_broker in groupby(rows, key=lambda row: int(row["broker"])):
        parts = list(of_broker)
        operations, fine = (sum(row[name] for row in parts) for name in ("operations", "fine"))
        if operations >= FEWEST and len(parts) == PARTS and fine > operations / 2:
            phase = phase_of([row["late_ms"] for row in parts])
            if phase is not None:
                estimates[broker] = phase
    return estimates


def figures(tables: RunTables, phases: Mapping[int, float], counted: Iterable[ExpirationCount]) -> list[Table]:
    """Return all tables that need no server log, in the order of the report.

    Args:
        tables: The tables of the replay, with `fidelity`.
        phases: Phase of each broker's timer in milliseconds, for brokers with a clear one.
        counted: Expirations as the brokers counted them; empty without JMX readings.
    """
    counts = tables.rows("fidelity/counts")
    return [
        agreement(counts),
        outcome_matrix(counts),
        waits(tables.rows("fidelity/waits")),
        lateness(tables.rows("fidelity/lateness"), phases),
        largest_differences(tables.rows("fidelity/worst", of_each=WORST)),
        causes(counts),
        pauses(tables.rows("fidelity/pauses")),
        expirations(tables, counted),
        group_answers(counts),
    ]


def agreement(counts: Rows) -> Table:
    """Return the table of agreement by kind: the operations with equal outcomes, and the numbers of each outcome."""
    totals: Counter[tuple[str, int | None, str]] = Counter()
    for row in counts:
        counted = ["n", f"recorded {row['recorded_outcome']}", f"replayed {row['replayed_outcome']}"]
        for name in [*counted, *(["same"] if row["agrees"] else [])]:
            for broker in (None, row["broker"]):
                totals[row["kind"], broker, name] += row["operations"]
    keys = {(kind, broker) for kind, broker, _ in totals if kind in BY_ID}
    return Table(
        "Outcomes of operations, recorded / replayed",
        ("kind", "broker", "operations", "same", "%", "at once", "completed", "expired"),
        [
            (
                *_names(kind, broker),
                totals[kind, broker, "n"],
                totals[kind, broker, "same"],
                round(100 * totals[kind, broker, "same"] / totals[kind, broker, "n"], 2),
                *(
                    f"{totals[kind, broker, f'recorded {end}']:,} / {totals[kind, broker, f'replayed {end}']:,}"
                    for end in CLASSES
                ),
            )
            for kind, broker in sorted(keys, key=_place)
        ],
    )


def outcome_matrix(counts: Rows) -> Table:
    """Return the table of operations by recorded and by replayed outcome."""
    totals = _sums(counts, "kind", "recorded_outcome", "replayed_outcome")
    keys = {(kind, recorded) for kind, recorded, _ in totals if kind in BY_ID}
    return Table(
        "Recorded outcomes (rows) and replayed outcomes (columns)",
        ("kind", "recorded", "at once", "completed", "expired", "no outcome"),
        [
            (kind, recorded, *(totals[kind, recorded, replayed] for replayed in (*CLASSES, NONE)))
            for kind, recorded in sorted(keys, key=lambda key: (BY_ID.index(key[0]), CLASSES.index(key[1])))
        ],
    )


def waits(rows: Rows) -> Table:
    """Return the table of quantiles of the absolute differences between recorded and replayed waits.

    `rows` are the result of the query `fidelity/waits`.
    """
    return Table(
        "Difference between recorded and replayed waits, ms",
        ("kind", "broker", "operations", "median", "p95", "p99", "worst"),
        [
            (
                *_names(row["kind"], row["broker"]),
                row["operations"],
                *(round(row[name], 2) for name in ("median", "p95", "p99", "worst")),
            )
            for row in sorted(rows, key=lambda row: _place((row["kind"], row["broker"])))
        ],
    )


def lateness(rows: Rows, phases: Mapping[int, float]) -> Table:
    """Return the table of how late brokers expired operations, compared with the replay, and of their timers' phases.

    `rows` are those of `fidelity/lateness`.
    """
    return Table(
        "Lateness of expirations, ms (the median of a broker is subtracted from differences of waits)",
        ("broker", "operations", "median", "p95", "phase of the timer", "median after subtraction"),
        [
            (
                str(row["broker"]),
                row["operations"],
                round(row["median"], 2),
                round(row["p95"], 2),
                round(phases[row["broker"]], 2) if row["broker"] in phases else None,
                round(row["remaining"], 2),
            )
            for row in rows
        ],
    )


def largest_differences(rows: Rows) -> Table:
    """Return the table of the largest differences between waits. `rows` are those of `fidelity/worst`."""
    return Table(
        "Largest differences of waits",
        ("kind", "request", "operation", "recorded", "ms", "replayed", "ms"),
        [
            (
                row["kind"],
                request_label(row["request_id"]),
                str(row["operation_id"]),
                row["recorded_outcome"],
                round(row["recorded_ms"], 2),
                row["replayed_outcome"],
                round(row["replayed_ms"], 2),
            )
            for row in sorted(rows, key=lambda row: _kind_place(row["kind"]))
        ],
    )


def causes(counts: Rows) -> Table:
    """Return the table of disagreements by cause."""
    differing = [row for row in counts if not row["agrees"]]
    totals = _sums(differing, "kind", "recorded_outcome", "replayed_outcome", "cause")
    return Table(
        "Disagreements and their causes",
        ("kind", "recorded", "replayed", "operations", "cause"),
        [
            (kind, recorded, replayed, operations, f"{cause}: {CAUSES[cause]}")
            for (kind, recorded, replayed, cause), operations in sorted(
                totals.items(), key=lambda item: (item[0][0], -item[1], *item[0][1:])
            )
        ],
    )


def pauses(rows: Rows) -> Table:
    """Return the table of periods in which brokers stood still, with the operations that waited there.

    `rows` are those of `fidelity/pauses`.
    """
    return Table(
        "Brokers that stood still: operations that waited there then",
        ("broker", "since", "length s", "operations", "same outcome"),
        [
            (
                str(row["broker"]),
                moment(row["paused_us"]),
                round((row["resumed_us"] - row["paused_us"]) / 1e6, 1),
                row["operations"],
                row["same"],
            )
            for row in rows
        ],
    )


def expirations(tables: RunTables, counted: Iterable[ExpirationCount]) -> Table:
    """Return the table of expirations: recorded, replayed, and, if readings are given, as the brokers counted them."""
    schema = pa.schema(
        [
            ("broker", pa.int32()),
            ("kind", pa.string()),
            ("counted", pa.int64()),
            ("since_us", pa.int64()),
            ("until_us", pa.int64()),
        ]
    )
    readings = [(bean.broker, bean.kind, bean.count, bean.since_us, bean.until_us) for bean in counted]
    columns = list(zip(*readings, strict=True)) or [()] * len(schema)
    tables.add_rows("counter_readings", pa.table([list(column) for column in columns], schema=schema))
    rows = sorted(tables.rows("fidelity/expirations"), key=lambda row: _place((row["kind"], row["broker"])))
    return Table(
        "Expirations (for produces and list-offsets requests: expired partitions)",
        ("kind", "broker", "recorded", "replayed", "counted by the broker"),
        [(row["kind"], str(row["broker"]), row["recorded"], row["replayed"], row["counted"]) for row in rows],
    )


def group_answers(counts: Rows) -> Table:
    """Return the table of requests of group members with equal responses, by API and in total."""
    of_groups = [{**row, "kind": kind} for row in counts if row["kind"] not in BY_ID for kind in (row["kind"], ALL)]
    answers, same = _sums(of_groups, "kind"), _sums([row for row in of_groups if row["agrees"]], "kind")
    return Table(
        "Responses of group coordinators",
        ("kind", "responses", "same", "%"),
        [(kind, total, same[kind,], round(100 * same[kind,] / total, 2)) for (kind,), total in sorted(answers.items())],
    )


def _sums(counts: Rows, *columns: str) -> Counter[tuple[Any, ...]]:
    """Return the sum of the column `operations` for each combination of values of `columns`."""
    totals: Counter[tuple[Any, ...]] = Counter()
    for row in counts:
        totals[tuple(row[column] for column in columns)] += row["operations"]
    return totals


def _place(key: tuple[str, int | None]) -> tuple[tuple[int, str], int]:
    """Return the sort key of a kind and a broker; all brokers together come first."""
    kind, broker = key
    return _kind_place(kind), -1 if broker is None else broker


def _kind_place(kind: str) -> tuple[int, str]:
    """Return the sort key of a kind. The kinds of groups come last, by name."""
    return (BY_ID.index(kind), "") if kind in BY_ID else (len(BY_ID), kind)


def _names(kind: str, broker: int | None) -> tuple[str, str]:
    return kind, ALL if broker is None else str(broker)
