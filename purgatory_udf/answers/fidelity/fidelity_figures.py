"""The tables of a fidelity report, from the rows of the table `fidelity`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.answers.fidelity.broker_readings import Counted
from purgatory_udf.answers.fidelity.outcome_comparison import AT_ONCE, BY_ID, CAUSES, COMPLETED, EXPIRED, NONE
from purgatory_udf.common.console import Table

if TYPE_CHECKING:
    from purgatory_udf.answers.run_tables import RunTables

Rows = Sequence[Mapping[str, Any]]

ALL = "all"
CLASSES = (AT_ONCE, COMPLETED, EXPIRED)
# Operations of each kind in the table of the worst differences.
WORST = 3


def figures(tables: RunTables, phases: Mapping[int, float], counted: Iterable[Counted]) -> list[Table]:
    """Return all tables that need no server log, in the order of the report."""
    counts = tables.rows("fidelity/counts")
    return [
        agreement(counts),
        two_way(counts),
        waits(tables.rows("fidelity/waits")),
        lateness(tables.rows("fidelity/lateness"), phases),
        worst(tables.rows("fidelity/worst", of_each=WORST)),
        causes(counts),
        expirations(tables, counted),
        group_answers(counts),
    ]


def agreement(counts: Rows) -> Table:
    """Return the number of operations with the same outcome, and with each outcome on either side."""
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


def two_way(counts: Rows) -> Table:
    """Return the number of operations by recorded and replayed outcome."""
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
    """Return the quantiles of the differences of waits; `rows` are those of `fidelity/waits`."""
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
    """Return the lateness of operations that expired on both sides, and the phase of each broker's timer if known.

    `rows` are those of `fidelity/lateness`.
    """
    return Table(
        "Lateness of expirations, ms (the median of a broker is subtracted from differences of waits)",
        ("broker", "operations", "median", "p95", "phase of the timer", "remaining median"),
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


def worst(rows: Rows) -> Table:
    """Return the operations with the largest differences of waits; `rows` are those of `fidelity/worst`."""
    return Table(
        "Largest differences of waits",
        ("kind", "request", "operation", "recorded", "ms", "replayed", "ms"),
        [
            (
                row["kind"],
                row["request_id"],
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
    """Return the number of disagreements by cause."""
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


def expirations(tables: RunTables, counted: Iterable[Counted]) -> Table:
    """Return the number of expirations: recorded, replayed, and counted by the broker if a reading is given."""
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
        "Expirations (for produces: expired partitions)",
        ("kind", "broker", "recorded", "replayed", "counted by the broker"),
        [(row["kind"], str(row["broker"]), row["recorded"], row["replayed"], row["counted"]) for row in rows],
    )


def group_answers(counts: Rows) -> Table:
    """Return the number of joins, syncs and heartbeats with the same response."""
    of_groups = [row for row in counts if row["kind"] not in BY_ID]
    answers, same = _sums(of_groups, "kind"), _sums([row for row in of_groups if row["agrees"]], "kind")
    return Table(
        "Responses of group coordinators",
        ("kind", "responses", "same", "%"),
        [(kind, total, same[kind,], round(100 * same[kind,] / total, 2)) for (kind,), total in sorted(answers.items())],
    )


def _sums(counts: Rows, *columns: str) -> Counter[tuple[Any, ...]]:
    """Return the number of operations by the values of these columns."""
    totals: Counter[tuple[Any, ...]] = Counter()
    for row in counts:
        totals[tuple(row[column] for column in columns)] += row["operations"]
    return totals


def _place(key: tuple[str, int | None]) -> tuple[tuple[int, str], int]:
    """Return the sort key of a kind and a broker; all brokers together come first."""
    kind, broker = key
    return _kind_place(kind), -1 if broker is None else broker


def _kind_place(kind: str) -> tuple[int, str]:
    """Return the sort key of a kind: those of groups come last, in the order of their names."""
    return (BY_ID.index(kind), "") if kind in BY_ID else (len(BY_ID), kind)


def _names(kind: str, broker: int | None) -> tuple[str, str]:
    return kind, ALL if broker is None else str(broker)
