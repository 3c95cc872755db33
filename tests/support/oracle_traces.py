"""Kafka's own answers: the oracle's traces and hand-made cases as events of the contract and comparable rows.

`data/README.md` describes the lines of the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purgatory_udf.contract.outcome import Gauge, Outcome
from tests.support import recorded

Event = dict[str, Any]

TOPIC = "t"
FOLLOWER = 7
_CHANGES = {"A": "log_end", "R": "segment_roll", "H": "high_watermark", "S": "last_stable", "T": "truncate"}
_STANDINGS = {"online": "online", "offline": "offline", "moved": "not_leader", "unknown": "deleted"}
_ERRORS = {
    "NONE": "none",
    "REQUEST_TIMED_OUT": "timed_out",
    "KAFKA_STORAGE_ERROR": "offline",
    "NOT_LEADER_OR_FOLLOWER": "moved",
    "UNKNOWN_TOPIC_OR_PARTITION": "unknown",
}
# In bytes, compressed.
_LARGE = 500_000
_READERS = {"leo": (FOLLOWER, "read_uncommitted"), "hw": (-1, "read_uncommitted"), "lso": (-1, "read_committed")}


@dataclass
class OracleTrace:
    """A trace with Kafka's answers.

    Attributes:
        events: The events of the trace.
        outcomes: The expected lines, `op kind completed|expired t trigger detail`, in order of arrival.
        gauges: The expected readings: t, purgatory, watched, delayed.
        purge_interval: The purge interval of both purgatories, in operations.
        numbers: The partition number of each partition that the oracle names.
    """

    events: list[Event] = field(default_factory=list)
    outcomes: list[tuple[str, ...]] = field(default_factory=list)
    gauges: list[tuple[int, str, int, int]] = field(default_factory=list)
    purge_interval: int = 1000
    numbers: dict[str, int] = field(default_factory=dict)

    def rows(self, outcomes: Iterable[Outcome]) -> list[tuple[str, ...]]:
        """Convert the outcomes of a replay into the oracle's lines."""
        names = {f"{TOPIC}-{number}": name for name, number in self.numbers.items()}
        return [_row(outcome, names) for outcome in outcomes]

    def readings(self, gauges: Iterable[Gauge]) -> list[tuple[int, str, int, int]]:
        """Convert the gauges of a replay into the oracle's readings, Produce before Fetch."""
        rows = [(gauge.at_ms, gauge.purgatory, gauge.watched, gauge.delayed) for gauge in gauges]
        return sorted(rows, key=lambda row: (row[0], row[1] == "Fetch"))


def names() -> list[str]:
    """Return the names of the recorded traces."""
    return list(_trace_paths())


def is_large(name: str) -> bool:
    """Return whether the reference takes many seconds for the trace."""
    return recorded.existing_path(_trace_paths()[name]).stat().st_size > _LARGE


def load(name: str) -> OracleTrace:
    path = _trace_paths()[name]
    trace = _translate(_lines(path, "trace"))
    trace.outcomes = [tuple(line) for line in _lines(path, "outcomes")]
    trace.gauges = [(int(t), purgatory, int(w), int(d)) for t, purgatory, w, d in _lines(path, "gauges")]
    interval = re.search(r"(?:^|-)purge(\d+)(?:-|\.)", path.name)
    trace.purge_interval = int(interval[1]) if interval else 1000
    return trace


def cases() -> list[tuple[str, OracleTrace]]:
    """Return the hand-made cases with their titles."""
    titled = []
    for path in recorded.find_all("oracle", ending="cases.txt").values():
        for block in "".join(recorded.lines(path)).split("\n== ")[1:]:
            title, body = block.split("\n", 1)
            given, expected = body.split("\n--\n", 1)
            trace = _translate(line.split() for line in given.splitlines())
            trace.outcomes = [tuple(line.split()) for line in expected.splitlines() if line.strip()]
            titled.append((title, trace))
    return titled


def _trace_paths() -> dict[str, Path]:
    return recorded.find_all("oracle", "traces", ending=".trace")


def _lines(path: Path, what: str) -> Iterator[list[str]]:
    for line in recorded.lines(path.with_suffix(f".{what}")):
        if not line.startswith("#"):
            yield line.rstrip("\n").split("\t")


def _row(outcome: Outcome, names: dict[str, str]) -> tuple[str, ...]:
    if outcome.kind == "produce":
        answers = outcome.partitions
        detail = ",".join(
            f"{names[f'{answer.topic}-{answer.partition}']}:{_ERRORS[answer.error or '']}" for answer in answers
        )
    else:
        detail = str(outcome.bytes)
    return (
        str(outcome.request_id),
        outcome.kind[0].upper(),
        "expired" if outcome.expired else "completed",
        str(outcome.ended_us // 1000),
        "-" if outcome.trigger is None else names[outcome.trigger],
        detail,
    )


def _translate(lines: Iterable[list[str]]) -> OracleTrace:
    """Translate the lines, after events that make every partition empty."""
    trace = OracleTrace()
    translation = _Translation(trace.numbers)
    events = [translation.event(*line) for line in lines if line]
    first_us = events[0]["time_us"] if events else 0
    empty: list[Event] = [
        {"time_us": first_us, "type": "partition", "topic": TOPIC, "partition": number, "change": change, "offset": 0}
        for number in trace.numbers.values()
        for change in ("log_end", "high_watermark", "last_stable")
    ]
    trace.events = empty + events
    for seq, event in enumerate(trace.events, 1):
        event["seq"] = seq
    return trace


class _Translation:
    """Translates line by line. It tracks log ends, which the contract requires for rolls and the oracle omits."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        self._log_ends: dict[str, int] = {}

    def event(self, letter: str, t: str, *fields: str) -> Event:
        event = self._event(letter, *fields)
        event["time_us"] = int(t) * 1000
        return event

    def _event(self, letter: str, *fields: str) -> Event:
        if letter == "P":
            return self._produce(*fields)
        if letter == "F":
            return self._fetch(*fields)
        return self._change(letter, *fields)

    def _partition(self, name: str) -> dict[str, Any]:
        return {"topic": TOPIC, "partition": self._numbers.setdefault(name, len(self._numbers))}

    def _produce(self, operation: str, timeout_ms: str, parts: str) -> Event:
        return {
            "type": "produce",
            "request_id": operation,
            "acks": -1,
            "timeout_ms": int(timeout_ms),
            "partitions": [self._produced(*part.split(":")) for part in parts.split(",")],
        }

    def _produced(self, name: str, required: str) -> dict[str, Any]:
        offset = int(required)
        return self._partition(name) | {"base_offset": max(0, offset - 1), "last_offset": offset - 1, "bytes": 0}

    def _fetch(self, operation: str, max_wait_ms: str, min_bytes: str, reader: str, parts: str) -> Event:
        replica_id, isolation = _READERS[reader]
        return {
            "type": "fetch",
            "request_id": operation,
            "replica_id": replica_id,
            "max_wait_ms": int(max_wait_ms),
            "min_bytes": int(min_bytes),
            "max_bytes": 2**31 - 1,
            "isolation": isolation,
            "partitions": [self._fetched(*part.split(":")) for part in parts.split(",")],
        }

    def _fetched(self, name: str, offset: str, max_bytes: str) -> dict[str, Any]:
        return self._partition(name) | {"fetch_offset": int(offset), "max_bytes": int(max_bytes)}

    def _change(self, letter: str, name: str, *fields: str) -> Event:
        event: Event = {"type": "partition", **self._partition(name)}
        event["change"] = _CHANGES[letter] if letter != "L" else _STANDINGS[fields[0]]
        if letter == "R":
            event["offset"] = self._log_ends.get(name, 0)
        elif letter != "L":
            event["offset"] = offset = int(fields[0])
            if letter == "A":
                self._log_ends[name] = offset
                event["bytes"] = int(fields[1])
            elif letter == "T":
                self._log_ends[name] = min(offset, self._log_ends.get(name, 0))
        return event
