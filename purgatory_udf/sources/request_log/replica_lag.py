"""`replica.lag.time.max.ms`, from the removals of silent followers from in-sync sets.

At a check, a leader removes the followers that lack records and were last caught up longer ago than the setting:

    last two fetches      first append      check            check: removed
    ──┬─────────┬──────────────┬───────────────┬─────────────────┬──
      └────────── more than the setting ─────────────────────────┘
                └──────── at most 1.5 times the setting, or ─────┘
                               └── at most half of the setting ──┘

An append counts only if it shows that the follower lacked records: without one, it would still be in sync.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from purgatory_udf.backend.dataset import Dataset
from purgatory_udf.contract.value_types import INT32
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, GRANTED, PartitionChange
from purgatory_udf.sources.request_log.importing.broker_pauses import BrokerPause
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS, from_json, request_rows_in
from purgatory_udf.sources.request_log.inferred_settings import roundest
from purgatory_udf.sources.request_log.kafka_protocol import topic_of
from purgatory_udf.sources.request_log.log_line import MALFORMED
from purgatory_udf.storage.run_records import REPLICA_LAG, RecordedSetting

# A leader checks its followers in intervals of half of `replica.lag.time.max.ms`.
_CHECKS_OF_LAG = 1.5
# A follower counts as silent if it has not fetched for this long; a slow one was not caught up at its last fetch.
_SILENT_US = 2_000_000
# Delays between the leader's check and its request to the controller, in milliseconds.
_CHECK_LATE_MS = 200
# Removals from which the setting is derived, and how long before the first of them fetches are read.
_MOST_REMOVALS, _LONGEST_US = 100, 600_000_000
# Errors of produces with appended records.
_APPENDED = (errors.NONE, errors.REQUEST_TIMED_OUT, errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
_FETCH_TIMES = pa.schema([("broker", pa.int32()), ("replica", pa.int32()), ("start_us", pa.int64())])


class _Removal(NamedTuple):
    """A leader since `leading_us` asked the controller at `asked_us` to remove a replica from the in-sync set."""

    asked_us: int
    leader: int
    replica: int
    leading_us: int
    topic: str
    partition: int


def _removals(topic: str, partition: int, changes: Iterable[PartitionChange]) -> Iterator[_Removal]:
    """Yield the removals that leaders asked for, from the changes of a partition in time order."""
    isr: tuple[int, ...] | None = None
    leader, leading_us = -1, 0
    for change in changes:
        if change.leader is not None and change.leader != leader:
            leader, leading_us = change.leader, change.at_us
        if change.isr is None:
            continue
        if change.source == GRANTED and isr is not None:
            for replica in sorted(set(isr) - set(change.isr)):
                yield _Removal(change.asked_us, leader, replica, leading_us, topic, partition)
        if change.source != GIVEN or isr is None:
            isr = change.isr


def replica_lag_shown(requests: Dataset, context: Context, pauses: Sequence[BrokerPause]) -> list[RecordedSetting]:
    """Return `replica.lag.time.max.ms`, if leaders removed followers that had stopped fetching.

    Args:
        requests: The requests of a whole log, rows of REQUESTS.
        context: The changes of partitions, and names of topics.
        pauses: Pauses of brokers. Leaders that stood still did not check in time.
    """
    removals = sorted(removal for key, changes in context.changes.items() for removal in _removals(*key, changes))
    removals = removals[:_MOST_REMOVALS]
    if not removals:
        return []
    times = _fetch_times(requests, removals[0].asked_us - _LONGEST_US, removals[-1].asked_us)
    low, high, shown = 0.0, float(INT32), set[tuple[int, int, int]]()
    for removal in removals:
        asked_us, leader = removal.asked_us, removal.leader
        fetched = times[leader, removal.replica]
        before = fetched[: bisect_left(fetched, asked_us)][-2:]
        if len(before) < 2 or before[0] < removal.leading_us or asked_us - before[1] < _SILENT_US:
            continue
        if any(pause.broker == leader and pause.resumed_us > before[1] for pause in pauses):
            continue
        high = min(high, (asked_us - before[0]) / 1000)
        appended_us = _first_append(requests, context, removal, before[1])
        since = (asked_us - before[1]) / _CHECKS_OF_LAG, 2 * (asked_us - appended_us)
        low = max(low, min(since) / 1000 - _CHECK_LATE_MS)
        shown.add((leader, removal.replica, asked_us))
    found = roundest(low, high) if 0 < low <= high else None
    if found is None:
        return []
    value, is_certain = found
    return [RecordedSetting(REPLICA_LAG, round(low), round(high), value, is_certain and high < 2 * low, len(shown))]


def _fetch_times(requests: Dataset, from_us: int, until_us: int) -> dict[tuple[int, int], list[int]]:
    """Return the start of each fetch in [from_us, until_us) by (leader, follower), in time order."""
    fetches = requests.where_in("api", ["FETCH"]).select("broker", "client_id", "start_us")
    within = fetches.where_below("start_us", until_us).where_below("start_us", from_us, below=False)
    numbered = within.sql(
        """
        SELECT broker, CAST(regexp_extract(client_id, 'broker-([0-9]+)-fetcher-', 1) AS INT) AS replica, start_us
        FROM {rows} WHERE client_id LIKE 'broker-%-fetcher-%' ORDER BY start_us
        """,
        _FETCH_TIMES,
    )
    times: dict[tuple[int, int], list[int]] = defaultdict(list)
    for broker, replica, start_us in zip(*(column.to_pylist() for column in numbered.collect().columns), strict=True):
        times[broker, replica].append(start_us)
    return times


def _first_append(requests: Dataset, context: Context, removal: _Removal, from_us: int) -> int:
    """Return the start of the first accepted produce to the partition since `from_us`; without one, the removal."""
    produces = requests.where_in("api", ["PRODUCE"]).where_in("broker", [removal.leader])
    within = produces.where_below("start_us", removal.asked_us).where_below("start_us", from_us, below=False)
    found = removal.asked_us
    for row in request_rows_in(within.select(*REQUESTS.names).collect().to_batches()):
        try:
            topics = from_json(row.answer or "{}").get("responses") or []
            named = [topic for topic in topics if context.name(topic_of(topic)) == removal.topic]
            parts = [part for topic in named for part in topic["partitionResponses"]]
            if any(part["index"] == removal.partition and part["errorCode"] in _APPENDED for part in parts):
                found = min(found, row.start_us)
        except MALFORMED:
            # It is rejected when it is converted.
            continue
    return found
