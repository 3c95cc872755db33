"""What Kafka's own classes answered to requests of tiered partitions, as events of the contract and comparable rows.

`data/README.md` describes the files. The events are the contract's own, but for the topics of the header: each of their
partitions starts empty, and those of a remote topic start with a local log start offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Gauge, Outcome
from tests.support import recorded

Event = dict[str, Any]
# request_id, end, time in ms, purgatory, triggering partition, rule, and of each partition error and bytes
Row = tuple[Any, ...]

PURGATORIES = ("Fetch", "RemoteFetch", "RemoteListOffsets")
_FOLDER = ("oracle", "kafka4", "remote")
_WAITS = {"fetch": "Fetch", "remote_fetch": "RemoteFetch", "list_offsets": "RemoteListOffsets"}
# What Kafka's cases A and B are called in the tables; an answer in a list-offsets request has no case.
_CASES = {"not_leader": "A", "unknown_partition": "A", "offline": "A", "remote_reads": "B", "timeout": "expired"}


@dataclass
class RemoteTrace:
    """A trace with Kafka's answers.

    Attributes:
        events: The events of the trace.
        config: The broker's settings.
        rows: The expected answers, in order of `request_id`.
        expirations: Kafka's meters: fetches of consumers and followers, remote fetches, partitions of list-offsets.
        gauges: The expected readings: t, then `PurgatorySize` and `NumDelayedOperations` of each purgatory.
    """

    events: list[Event]
    config: Config
    rows: list[Row]
    expirations: tuple[int, ...]
    gauges: list[tuple[int, ...]] = field(default_factory=list)


def names() -> list[str]:
    """Return the names of the recorded traces."""
    return list(_event_files())


def load(name: str) -> RemoteTrace:
    path = _event_files()[name]
    answers, gauges = (path.with_name(path.name.replace(".events.", f".{what}.")) for what in ("answers", "gauges"))
    trace = _trace(_objects(path), _objects(answers))
    trace.gauges = [
        (line["time_us"] // 1000, *(value for purgatory in PURGATORIES for value in line[purgatory]))
        for line in _objects(gauges)
    ]
    return trace


def cases() -> list[tuple[str, RemoteTrace]]:
    """Return the hand-made cases with their titles."""
    titled = []
    for path in recorded.find_all(*_FOLDER, ending="cases.txt").values():
        for block in "".join(recorded.lines(path)).split("\n## "):
            title, body = block.removeprefix("## ").split("\n", 1)
            given, expected = ([json.loads(line) for line in part.splitlines() if line.startswith("{")]
                               for part in body.split("=>\n"))  # fmt: skip
            titled.append((title, _trace(given, expected)))
    return titled


def rows_of(outcomes: Iterable[Outcome]) -> list[Row]:
    """Convert the outcomes of a replay into the oracle's answers."""
    return sorted(map(_row, outcomes))


def expirations_of(outcomes: Iterable[Outcome]) -> tuple[int, ...]:
    """Count what Kafka's meters count."""
    expired = [outcome for outcome in outcomes if outcome.expired]
    by_kind = [(outcome.kind, outcome.fetcher) for outcome in expired]
    timed_out = [
        answer.error
        for outcome in expired
        if outcome.kind == "list_offsets"
        for answer in outcome.partitions
        if answer.error == "REQUEST_TIMED_OUT"
    ]
    readers = [by_kind.count(("fetch", fetcher)) for fetcher in ("consumer", "follower")]
    return *readers, by_kind.count(("remote_fetch", "consumer")), len(timed_out)


def readings_of(gauges: Iterable[Gauge], times: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the readings at these times; a purgatory without a reading is empty."""
    read = {(gauge.at_ms, gauge.purgatory): (gauge.watched, gauge.delayed) for gauge in gauges}
    return [(at_ms, *(value for name in PURGATORIES for value in read.get((at_ms, name), (0, 0)))) for at_ms in times]


def _event_files() -> dict[str, Path]:
    return recorded.find_all(*_FOLDER, ending=".events.jsonl")


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    for line in recorded.lines(path):
        row = json.loads(line)
        if "answers" not in path.name or "header" not in row:
            yield row


def _trace(given: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]]) -> RemoteTrace:
    header, *events = given
    *answers, totals = expected
    settings, topics = header["header"]["config"], header["header"]["topics"]
    config = {
        "remote_fetch": {"max_wait_ms": settings["remote.fetch.max.wait.ms"]},
        "list_offsets": {"request_timeout_ms": settings["remote.list.offsets.request.timeout.ms"]},
        # The oracle calls `ReplicaManager.fetchMessages`; Kafka's request handler limits `min_bytes` before that.
        "fetch": {
            "max_bytes": 2**31 - 1,
            "cap_min_bytes": False,
            "purge_interval": settings.get("fetch.purgatory.purge.interval.requests", 1000),
        },
    }
    counts = totals["totals"]
    return RemoteTrace(
        [*_empty_partitions(events[0]["time_us"], topics), *map(_with_batch, events)],
        Config.model_validate(config),
        sorted(map(_answer, answers)),
        tuple(
            counts[f"ExpiresPerSec_{meter}"]
            for meter in ("Fetch_consumer", "Fetch_follower", "RemoteFetch", "RemoteListOffsets")
        ),
    )


def _empty_partitions(time_us: int, topics: Iterable[dict[str, Any]]) -> Iterator[Event]:
    seq = -1_000_000
    for topic in topics:
        for partition in range(topic["partitions"]):
            place = {"time_us": time_us, "type": "partition", "topic": topic["topic"], "partition": partition}
            for change in ("log_end", "high_watermark", *(["local_log_start"] if topic["remote"] else [])):
                seq += 1
                yield {**place, "seq": seq, "change": change, "offset": 0}


def _with_batch(event: Event) -> Event:
    """Each append of the oracle is one batch."""
    return event | {"batches": 1} if event.get("change") == "log_end" else event


def _answer(line: dict[str, Any]) -> Row:
    waited = line["end"] != "arrival"
    fetch = line["type"] == "fetch"
    partitions = line["partitions"]
    parts = tuple((part["topic"], part["partition"], part["error"], part.get("bytes", 0)) for part in partitions)
    remote = line.get("purgatory") == "RemoteFetch"
    return (
        line["request_id"],
        line["end"] == "expired",
        line["time_us"] // 1000,
        line["purgatory"] if waited else None,
        line.get("by_partition"),
        line["rule"] if remote else None,
        sum(part["bytes"] for part in partitions) if fetch else None,
        # Of a fetch that waits for local data, the tables have the readable bytes of each partition.
        tuple(part if remote or not fetch else part[:3] for part in parts),
    )


def _row(outcome: Outcome) -> Row:
    parts = tuple((part.topic, part.partition, part.error, part.bytes) for part in outcome.partitions)
    remote = outcome.watched and outcome.kind == "remote_fetch"
    return (
        outcome.request_id,
        outcome.expired,
        outcome.ended_us // 1000,
        _WAITS[outcome.kind] if outcome.watched else None,
        outcome.trigger,
        _CASES[outcome.completed_by] if remote else None,
        outcome.answered_bytes,
        tuple(part if remote or outcome.kind == "list_offsets" else part[:3] for part in parts),
    )
