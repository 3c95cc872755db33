"""The end of a run: its last gauge readings, and the counts for its record in `runs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from purgatory_udf.backend.backend import Backend
from purgatory_udf.backend.delta_store import EPOCH, Condition
from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.rules.groups.group_rows import KINDS
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.batch_sink import Sink
from purgatory_udf.streaming.event_source import Survey
from purgatory_udf.streaming.group_answer_check import disagreement_counts
from purgatory_udf.streaming.stateful_rules import closing_ms


def close_gauges(backend: Backend, layout: Layout, config: Config, last_us: int, latest_us: int | None = None) -> None:
    """Delete readings later than the end of the trace, or, in a drained run, than its last operation.

    Args:
        backend: Backend of the tables.
        layout: The run's tables.
        config: The run's configuration.
        last_us: Time of the trace's last event, in epoch microseconds.
        latest_us: When the last operation ended; None if that must be read from the tables.
    """
    until_ms = last_us // 1000
    if config.drain:
        until_ms = closing_ms(last_us, _last_end_us(backend, layout) if latest_us is None else latest_us)
    table = layout.table("purgatory_gauges")
    late = [Condition("at", ">", EPOCH + timedelta(milliseconds=until_ms))]
    if backend.delta(table).count(table, late):
        backend.delta(table).delete(table, late)


def _last_end_us(backend: Backend, layout: Layout) -> int:
    """Return when the last operation ended, in epoch microseconds; cancelled ones end before the trace does."""
    ends = backend.query(
        "SELECT max(ended_at) AS ended_at FROM (SELECT completed_at AS ended_at FROM completions "
        "UNION ALL SELECT expired_at AS ended_at FROM expirations) AS ended",
        {name: layout.table(name) for name in ("completions", "expirations")},
    ).to_pylist()
    last = ends[0]["ended_at"]
    return 0 if last is None else int((last - EPOCH) / timedelta(microseconds=1))


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
        counted = backend.query(f"SELECT count(*) AS n FROM ends WHERE kind IN ({kinds})", {"ends": path})
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
