"""Data reported by brokers: expirations in readings of their MBeans, and events of groups in their server logs.

A reading is a JSON object by broker id: `{"1": {"mbeans": {NAME: {"Count": 12, "readAtMs": 1795229776260}}}}`. The file
may be compressed. The names are those of JMX; attributes other than `Count` and `readAtMs` are ignored.

The server logs of the brokers (`server.log`, in any log4j layout) contain lines of group coordinators:

    [GroupCoordinator 2]: Preparing to rebalance group g in state PreparingRebalance with old generation 4 (…)
    [GroupCoordinator 2]: Stabilized group g generation 5 (__consumer_offsets-0) with 3 members

The classic coordinator and that of Kafka 4 log the same messages at level INFO.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.log_files import find_logs, open_text, read_text, timestamp_us

CONSUMERS = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer"
FOLLOWERS = "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=follower"
PRODUCES = "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec"
REMOTE_FETCHES = "kafka.server:type=DelayedRemoteFetchMetrics,name=ExpiresPerSec"
LIST_OFFSETS = "kafka.server:type=DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec"
SHARE_FETCHES = "kafka.server:type=DelayedShareFetchMetrics,name=ExpiresPerSec"

# The MBean of each kind of operation. The MBeans of produces and list-offsets requests count partitions, the others
# count requests.
COUNTERS = {
    "consumer fetch": CONSUMERS,
    "follower fetch": FOLLOWERS,
    "produce acks=-1": PRODUCES,
    "remote fetch": REMOTE_FETCHES,
    "list_offsets": LIST_OFFSETS,
    "share fetch": SHARE_FETCHES,
}


@dataclass(frozen=True, slots=True)
class ExpirationCount:
    """The number of expirations of `kind` at a broker, after `since_us` and up to `until_us`."""

    broker: int
    kind: str
    count: int
    since_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class _Reading:
    count: int
    at_us: int


def count_expirations(before: str | Path | None, after: str | Path) -> list[ExpirationCount]:
    """Return the increase of each counter between two readings, or since the broker started.

    A broker creates a counter with its first event, so a counter without an earlier reading started at 0.

    Args:
        before: File with the first reading; None to count from the start of the brokers.
        after: File with the last reading.

    Raises:
        UserError: The last reading has no counter of expirations, or a broker was restarted between the readings.
    """
    last = _readings(after)
    if not last:
        raise UserError(
            f"{after}: no ExpiresPerSec of DelayedFetchMetrics or DelayedProduceMetrics found; read these MBeans "
            "from the brokers again"
        )
    first = _readings(before) if before else {}
    first_read_us = _moments(before) if before else {}
    increases = []
    for (broker, kind), reading in sorted(last.items()):
        start = first.get((broker, kind)) or _Reading(0, first_read_us.get(broker, 0))
        if reading.count < start.count:
            raise UserError(
                f"{after}: {kind} of broker {broker}: the counter fell from {start.count} to {reading.count}, so the "
                "broker was restarted between the readings; compare readings without a restart between them"
            )
        increases.append(ExpirationCount(broker, kind, reading.count - start.count, start.at_us, reading.at_us))
    return increases


def _readings(path: str | Path) -> dict[tuple[int, str], _Reading]:
    readings = {}
    for broker, named in _beans(path).items():
        for kind, name in COUNTERS.items():
            if name in named:
                try:
                    count, at_ms = int(named[name]["Count"]), int(named[name]["readAtMs"])
                except (ValueError, KeyError, TypeError):
                    raise UserError(
                        f"{path}: broker {broker}, {name}: Count and readAtMs must be whole numbers"
                    ) from None
                readings[broker, kind] = _Reading(count, at_ms * 1000)
    return readings


def _moments(path: str | Path) -> dict[int, int]:
    """Return the time of each broker's first reading, in microseconds."""
    return {
        broker: min((int(bean.get("readAtMs", 0)) for bean in named.values()), default=0) * 1000
        for broker, named in _beans(path).items()
    }


def _beans(path: str | Path) -> dict[int, dict[str, dict[str, Any]]]:
    try:
        by_broker = json.loads(read_text(path))
    except ValueError as error:
        raise UserError(f"{path}: this is not JSON: {error}") from None
    try:
        return {int(broker): dict(values["mbeans"]) for broker, values in by_broker.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}: expected a JSON object with an object for each broker id, which has the broker's MBeans in the "
            "field mbeans"
        ) from None


# A group prepares to rebalance; a new generation; expiration of a member's session, of joins, of syncs.
REBALANCE, GENERATION, SESSION, JOIN, SYNC = "rebalance", "generation", "session", "join", "sync"
KINDS = (REBALANCE, GENERATION, SESSION, JOIN, SYNC)


class LoggedGroupEvent(NamedTuple):
    """An event of a group, as a coordinator logs it.

    `detail` is the old generation of a rebalance, the number of a new generation, or the member of an expired session.
    """

    broker: int
    group: str
    kind: str
    detail: str
    at_us: int


_BROKER = re.compile(r"\[GroupCoordinator (?:id=)?(\d+)[^]]*\]:? ?")
_SENTENCES = (
    (
        REBALANCE,
        re.compile(r"Preparing to rebalance group (?P<group>.+) in state \w+ with old generation (?P<detail>\d+)"),
    ),
    (GENERATION, re.compile(r"Stabilized group (?P<group>.+) generation (?P<detail>\d+) ")),
    (GENERATION, re.compile(r"Group (?P<group>.+) with generation (?P<detail>\d+) is now empty")),
    (SESSION, re.compile(r"Member (?P<detail>.+) in group (?P<group>.+) has failed, removing it from the group")),
    (
        SESSION,
        re.compile(r"Pending member (?P<detail>.+) in group (?P<group>.+) has been removed after session timeout"),
    ),
    (JOIN, re.compile(r"Group (?P<group>.+) removed dynamic members who haven't joined(?P<detail>):")),
)
_SYNC_EXPIRED = "on pending sync request expiration"


def group_events_in_logs(paths: Sequence[str], zone: tzinfo = UTC) -> list[LoggedGroupEvent]:
    """Return the events of groups in the files, in time order.

    `zone` applies to times without a time zone.

    Raises:
        UserError: No file has a line of a group coordinator.
    """
    events: list[LoggedGroupEvent] = []
    for file in find_logs(paths):
        with open_text(file.path) as lines:
            events += group_events_in(lines, zone)
    if not events:
        raise UserError(
            f"{', '.join(paths)}: no line of a group coordinator found; expected a server.log at level INFO"
        )
    return sorted(events, key=lambda event: event.at_us)


def group_events_in(lines: Iterable[str], zone: tzinfo = UTC) -> Iterator[LoggedGroupEvent]:
    """Yield the events in the lines of one log; `zone` applies to times without a time zone."""
    for line in lines:
        coordinator = _BROKER.search(line)
        if coordinator is None:
            continue
        broker, at_us, message = int(coordinator[1]), timestamp_us(line, zone), line[coordinator.end() :]
        if at_us is None:
            continue
        for kind, sentence in _SENTENCES:
            if match := sentence.match(message):
                yield LoggedGroupEvent(broker, match["group"], kind, match["detail"], at_us)
                if kind == REBALANCE and _SYNC_EXPIRED in message:
                    yield LoggedGroupEvent(broker, match["group"], SYNC, "", at_us)
                break
