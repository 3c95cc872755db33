"""Counts of a finished run for its record in `runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from purgatory_udf.backend.backend import Backend
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.rules.groups.group_rows import KINDS
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.batch_sink import Sink
from purgatory_udf.streaming.event_source import Survey
from purgatory_udf.streaming.group_answer_check import disagreement_counts


def rows_written(sinks: Sequence[Sink]) -> Counter[str] | None:
    """Return the rows given to each table; None if this process has not seen every batch or the run omits some."""
    rows = [sink.rows for sink in sinks if sink.drain]
    return sum((each for each in rows if each is not None), Counter()) if rows and None not in rows else None


def last_end_us(sinks: Sequence[Sink]) -> int | None:
    """Return when the last operation ended; None if this process has not seen every batch."""
    ends = [sink.latest_us for sink in sinks]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def run_counts(
    backend: Backend, layout: Layout, survey: Survey, groups: dict[str, Any], given: Counter[str] | None
) -> dict[str, Any]:
    """Count the results of a run.

    Args:
        backend: Backend that reads the tables.
        layout: The run's tables.
        survey: Size and time span of the trace.
        groups: The counts of consumer groups, if there are any.
        given: The rows given to each table, if that is known without counting them.
    """

    def rows(name: str) -> int:
        if given is not None and name in ENDS:
            return given[name]
        path = layout.table(name)
        store = backend.delta(path)
        return store.count(path) if store.is_table(path) else 0

    with ThreadPoolExecutor(len(ENDS) + 1) as pool:
        *ended, rejected = pool.map(rows, (*ENDS, "rejected_events"))
    # No event names a session or a rebalance: their number comes from the groups' counts.
    operations = survey.operations + groups.get("operations", 0)
    return {
        "events": survey.events,
        "rejected": rejected,
        "lines": survey.events + rejected,
        "operations": operations,
        **dict(zip(ENDS, ended, strict=True)),
        "open": operations - sum(ended),
        **({"groups": groups} if groups else {}),
    }


def group_counts(backend: Backend, layout: Layout, sink: Sink) -> dict[str, Any]:
    """Count the operations, transitions and disagreements of consumer groups."""
    given = rows_written([sink])

    def rows(table: str) -> int:
        if given is not None:
            return given[table]
        path = layout.table(table)
        if table == "group_transitions":
            return backend.delta(path).count(path)
        kinds = ", ".join(f"'{kind}'" for kind in KINDS)
        counted = backend.query(f"SELECT count(*) AS n FROM {{ends}} WHERE kind IN ({kinds})", {"ends": path})
        return int(counted.column("n")[0].as_py())

    still_open = 0
    if not sink.drain:
        assert sink.gauges is not None
        still_open = sink.gauges.left_open()
    ended = {table: rows(table) for table in ENDS}
    return {
        "operations": sum(ended.values()) + still_open,
        **ended,
        "open": still_open,
        "transitions": rows("group_transitions"),
        "disagreements": disagreement_counts(backend, layout),
    }
