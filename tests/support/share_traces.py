"""What Kafka's own classes answered to share groups, as events of the contract and comparable rows.

`data/README.md` describes the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import event_table
from tests.support import recorded

Event = dict[str, Any]
Row = tuple[Any, ...]

_FOLDER = ("oracle", "kafka4", "share")
_SETTINGS = {
    "group.share.record.lock.duration.ms": "record_lock_duration_ms",
    "group.share.delivery.count.limit": "delivery_count_limit",
    "group.share.partition.max.record.locks": "partition_max_record_locks",
}


@dataclass
class ShareTrace:
    """A trace with Kafka's answers.

    Attributes:
        events: The events of the trace.
        config: The broker's settings.
        fetches: The expected answers to share fetches, in order of `request_id`.
        answers: Those to acknowledgements and ends of sessions.
        states: The last state of each share partition in each millisecond in which it changed.
        expirations: Kafka's meter.
        gauges: The expected readings: t, `PurgatorySize`, `NumDelayedOperations`, locks, and both meters.
    """

    events: list[Event]
    config: Config
    fetches: list[Row]
    answers: list[Row]
    states: dict[Row, Row]
    expirations: int
    gauges: list[tuple[int, ...]] = field(default_factory=list)


def names() -> list[str]:
    """Return the names of the recorded traces."""
    return list(_event_files())


def as_table(events: Iterable[Event]) -> pa.Table:
    """Return the events as rows of `events`. The traces have further fields."""
    columns = event_table([]).column_names
    return event_table([{"broker": 0} | {k: v for k, v in event.items() if (k in columns and k != "batches") or
                         (k == "batches" and isinstance(v, int))} for event in events])  # fmt: skip


def load(name: str) -> ShareTrace:
    path = _event_files()[name]
    answers, gauges = (path.with_name(path.name.replace(".events.", f".{what}.")) for what in ("answers", "gauges"))
    trace = _trace(_objects(path), _objects(answers))
    trace.gauges = [
        (
            line["time_us"] // 1000,
            *line["ShareFetch"],
            line["locks"],
            line["ExpiresPerSec"],
            line["AcquisitionLockTimeoutPerSec"],
        )
        for line in _objects(gauges)
    ]
    return trace


def cases() -> list[tuple[str, ShareTrace]]:
    """Return the hand-made cases with their titles."""
    titled = []
    for path in recorded.find_all(*_FOLDER, ending="cases.txt").values():
        for block in "".join(recorded.lines(path)).split("\n## "):
            title, body = block.removeprefix("## ").split("\n", 1)
            given, expected = ([json.loads(line) for line in part.splitlines() if line.startswith("{")]
                               for part in body.split("=>\n"))  # fmt: skip
            titled.append((title, _trace(given, expected)))
    return titled


def _event_files() -> dict[str, Path]:
    return recorded.find_all(*_FOLDER, ending=".events.jsonl")


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    for line in recorded.lines(path):
        row = json.loads(line)
        if "answers" not in path.name or "header" not in row:
            yield row


def _trace(given: Iterable[dict[str, Any]], expected: Iterable[dict[str, Any]]) -> ShareTrace:
    header, *events = given
    header = header["header"]
    *rows, totals = expected
    settings = header["config"]
    share: dict[str, Any] = {name: settings[key] for key, name in _SETTINGS.items()}
    share["state_write_ms"] = header["write_delay_ms"]
    share["purge_interval"] = settings.get("share.fetch.purgatory.purge.interval.requests", 1000)
    # The log of the oracle is not Kafka's.
    share["reads"] = "batches"
    config = Config.model_validate({"share": share, "fetch": {"max_bytes": 2**31 - 1, "cap_min_bytes": False}})
    of_fetches = [row for row in rows if row["type"] == "share_fetch"]
    return ShareTrace(
        [*_preparation(events[0]["time_us"], header), *_converted(events)],
        config,
        sorted(map(_fetch_row, of_fetches)),
        sorted(map(_answer_row, (row for row in rows if row["type"] in ("share_acknowledge", "share_release")))),
        {
            (row["time_us"] // 1000, row["group"], row["topic"], row["partition"]): _state_row(row)
            for row in rows
            if row["type"] == "state"
        },
        totals["totals"]["ExpiresPerSec"],
    )


def _preparation(time_us: int, header: dict[str, Any]) -> Iterator[Event]:
    """Yield the empty partitions and the settings of the groups."""
    seq = -1_000_000
    for topic in header["topics"]:
        for partition in range(topic["partitions"]):
            place = {"time_us": time_us, "type": "partition", "topic": topic["topic"], "partition": partition}
            for change in ("log_end", "high_watermark"):
                seq += 1
                yield {**place, "seq": seq, "change": change, "offset": 0}
    for group, settings in header["groups"].items():
        seq += 1
        reset = settings["share.auto.offset.reset"]
        yield {"time_us": time_us, "seq": seq, "type": "share_group", "group": group, "auto_offset_reset": reset}


def _converted(events: Iterable[Event]) -> Iterator[Event]:
    ends: dict[tuple[str, int], int] = {}
    for event in events:
        if event.get("change") == "log_end":
            key = event["topic"], event["partition"]
            records = event["offset"] - ends.get(key, 0)
            ends[key] = event["offset"]
            yield event | {"bytes": _batch_bytes(records, event["record_bytes"]), "batches": 1}
        elif event["type"] == "share_acknowledge":
            place = {"topic": event["topic"], "partition": event["partition"]}
            yield event | {
                "acknowledgements": [
                    {**place, "first_offset": first, "last_offset": last, "types": types}
                    for first, last, types in event["batches"]
                ]
            }
        else:
            yield event


def _batch_bytes(records: int, value_bytes: int) -> int:
    """Return the size of a batch of records with values of this size, without keys and headers."""
    size = 61
    for offset in range(records):
        body = 1 + 1 + _varint_bytes(offset) + 1 + _varint_bytes(value_bytes) + value_bytes + 1
        size += _varint_bytes(body) + body
    return size


def _varint_bytes(value: int) -> int:
    return max(1, -(-(2 * value).bit_length() // 7))


def _fetch_row(line: dict[str, Any]) -> Row:
    parts = tuple(
        (part["topic"], part["partition"], part["error"], part["bytes"], tuple(map(tuple, part["acquired"])))
        for part in line["partitions"]
    )
    return line["request_id"], line["end"], line["time_us"] // 1000, parts


def _answer_row(line: dict[str, Any]) -> Row:
    return line["request_id"], line["end"], line["time_us"] // 1000, line["error"]


def _state_row(line: dict[str, Any]) -> Row:
    if line["state"] == "none":
        return ("none",)
    return (line["state"], line["start_offset"], line["end_offset"], tuple(map(tuple, line["batches"])))
