"""The gauges of every broker's purgatories, from the results of a whole run held in memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from purgatory_udf.columnar.frame import Array, Frame, Layout
from purgatory_udf.columnar.gauges import gauges
from purgatory_udf.columnar.partition import WALKS
from purgatory_udf.columnar.replicas import DELETE_CHECK, FETCH_CHECK, PRODUCE_CHECK
from purgatory_udf.columnar.settle import Settled
from purgatory_udf.columnar.topics import TOPIC_CHECK
from purgatory_udf.config import Config
from purgatory_udf.loop.words import PURGATORIES, Code
from purgatory_udf.tables import PURGATORY_GAUGES, TIMESTAMP

CHECKS = {
    Code.PRODUCE: PRODUCE_CHECK,
    Code.FETCH: FETCH_CHECK,
    Code.DELETE_RECORDS: DELETE_CHECK,
    Code.CREATE_TOPICS: TOPIC_CHECK,
}

_OPERATIONS = Layout(("op", "code", "broker", "t", "deadline", "expired", "watched", "end_t", "end_seq", "end_sub"))
_WATCHES = Layout(("op", "key", "code", "broker"))


def purge_intervals(config: Config) -> dict[Code, int]:
    return {
        Code.PRODUCE: config.produce.purge_interval,
        Code.FETCH: config.fetch.purge_interval,
        Code.DELETE_RECORDS: config.delete_records.purge_interval,
        Code.CREATE_TOPICS: config.create_topics.purge_interval,
        Code.HEARTBEAT: config.group.purge_interval,
        Code.REBALANCE: config.group.purge_interval,
    }


def gauge_rows(
    results: Iterable[tuple[Settled, list[str]]],
    walks: Iterable[tuple[Frame, list[str]]],
    config: Config,
    first_ms: int,
    last_ms: int,
    run_id: str,
) -> pa.Table:
    """`purgatory_gauges` up to `last_ms`, of a trace whose first event is in `first_ms`. `walks` as `step` found them.

    Results and walks come with the names that their keys count in.
    """
    intervals = purge_intervals(config)
    numbers: dict[str, int] = {}
    settled = list(results)
    operations = Frame.concat([_OPERATIONS.empty(), *(part.operations.only(_OPERATIONS.names) for part, _ in settled)])
    watches = _numbered(((part.watches.only(_WATCHES.names), names) for part, names in settled), _WATCHES, numbers)
    walked = _numbered(walks, WALKS, numbers)
    parts = []
    for broker in np.unique(operations.broker):
        for code, check in CHECKS.items():
            mine = operations.take((operations.broker == broker) & (operations.code == code) & (operations.watched > 0))
            if not len(mine):
                continue
            entries = watches.take((watches.broker == broker) & (watches.code == code))
            watched = np.zeros(len(numbers), dtype=bool)
            watched[entries.key] = True
            checks = walked.take((walked.checks & check > 0) & watched[walked.key])
            found = gauges(mine, entries, checks, intervals[code], first_ms, last_ms)
            parts.append(table(found, int(broker), PURGATORIES[code], run_id))
    return pa.concat_tables([PURGATORY_GAUGES.empty_table(), *parts])


def table(found: Frame, broker: int, purgatory: str, run_id: str) -> pa.Table:
    """One purgatory's gauges as rows of `purgatory_gauges`."""
    rows = len(found)
    columns = {
        "run_id": pa.repeat(run_id, rows),
        "broker": pa.repeat(pa.scalar(broker, pa.int32()), rows),
        "purgatory": pa.repeat(purgatory, rows),
        "at": pa.array(found.at_ms * 1000).cast(pa.timestamp("us")).cast(TIMESTAMP),
        "watched": pa.array(found.watched),
        "delayed": pa.array(found.delayed),
        "purged": pa.array(found.purged),
    }
    return pa.table(columns, schema=PURGATORY_GAUGES)


def _numbered(parts: Iterable[tuple[Frame, list[str]]], layout: Layout, numbers: dict[str, int]) -> Frame:
    """The parts together; their keys count in one list of names from now on."""
    frames = [layout.empty()]
    for frame, names in parts:
        number: Array = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
        frames.append(frame.with_columns(key=number[frame.key]) if len(frame) else frame)
    return Frame.concat(frames)
