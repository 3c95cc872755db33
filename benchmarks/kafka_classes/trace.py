"""Parses a trace of tab-separated lines, the format of the tests' oracle, to a table of events; column by column.

    P t op timeoutMs tp:requiredOffset[,…]          produce, acks=all
    F t op maxWaitMs minBytes hw|leo|lso tp:fetchOffset:maxBytes[,…]
    A t tp endOffset bytes                          append
    H, S, T t tp offset                             high watermark, last stable offset, truncation
    R t tp                                          segment roll at the log end
    L t tp online|offline|moved|unknown             leadership

The table starts with events that set every partition's log to empty. Partitions are numbered by first appearance.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.tables import EVENT_PARTITION, EVENTS
from purgatory_udf.sources.request_log.log_files import open_text

TOPIC = "t"
FOLLOWER = 7
_CHANGES = {
    "A": "log_end",
    "H": "high_watermark",
    "S": "last_stable",
    "T": "truncate",
    "R": "segment_roll",
}
_STANDINGS = {"online": "online", "offline": "offline", "moved": "not_leader", "unknown": "deleted"}
_ERRORS = {
    "NONE": "none",
    "REQUEST_TIMED_OUT": "timed_out",
    "KAFKA_STORAGE_ERROR": "offline",
    "NOT_LEADER_OR_FOLLOWER": "moved",
    "UNKNOWN_TOPIC_OR_PARTITION": "unknown",
}


@dataclass
class Trace:
    """A parsed trace, with its text and the names of its partitions by number."""

    name: str
    text: str
    events: pa.Table
    partitions: list[str]
    operations: int


def read(path: Path) -> Trace:
    """Read a trace from a plain or compressed file; lines that start with `#` are comments."""
    with open_text(path) as opened:
        return of_text(path.name.split(".")[0], opened.read())


def of_text(name: str, text: str) -> Trace:
    """Parse the text of a trace in the format that the module's docstring describes; `name` becomes its name."""
    lines = pa.array([line for line in text.splitlines() if line and not line.startswith("#")], pa.large_string())
    letters = pc.utf8_slice_codeunits(lines, 0, 1)
    numbers = _Numbers()
    parsed = []
    for letter in ("P", "F", *_CHANGES, "L"):
        rows = np.flatnonzero(pc.equal(letters, letter).to_numpy(zero_copy_only=False))
        if len(rows):
            fields = _columns(lines.take(pa.array(rows)))
            columns = {"seq": pa.array(rows), "time_us": pc.multiply(_integer(fields[1]), 1000)}
            if letter in "PF":
                columns |= _request(letter, fields, numbers)
            else:
                columns |= _change(letter, fields, numbers)
            parsed.append(_table(columns, len(rows)))
    operations = int(pc.sum(pc.is_in(letters, pa.array(["P", "F"], pa.large_string()))).as_py() or 0)
    events = pa.concat_tables([_empty_logs(parsed, len(numbers.names)), *parsed])
    events = events.take(pc.sort_indices(events["seq"])).combine_chunks()
    events = _rolls_at_log_ends(events).set_column(
        EVENTS.get_field_index("seq"), EVENTS.field("seq"), pa.array(np.arange(1, len(events) + 1))
    )
    return Trace(name, text, events, numbers.names, operations)


class _Numbers:
    """Assigns numbers to partitions in the order in which their names first appear."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: dict[str, int] = {}

    def of(self, names: pa.Array) -> pa.Array:
        coded = names.dictionary_encode()
        for name in coded.dictionary.to_pylist():
            if name not in self._known:
                self._known[name] = len(self.names)
                self.names.append(name)
        places = np.array([self._known[name] for name in coded.dictionary.to_pylist()], np.int32)
        return pa.array(places[coded.indices.to_numpy()])


def _columns(lines: pa.Array, mark: str = "\t") -> list[pa.Array]:
    """Split lines with the same number of fields into columns."""
    fields = pc.split_pattern(lines, mark)
    if isinstance(fields, pa.ChunkedArray):
        fields = fields.combine_chunks()
    return [pc.list_element(fields, at) for at in range(int(pc.min(pc.list_value_length(fields)).as_py()))]


def _integer(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.int64())


def _request(letter: str, fields: list[pa.Array], numbers: _Numbers) -> dict[str, pa.Array]:
    count = len(fields[0])
    requested = pc.split_pattern(fields[-1], ",")
    parts = _columns(pc.list_flatten(requested), ":")
    inner = {"topic": pa.repeat(TOPIC, len(parts[0])), "partition": numbers.of(parts[0])}
    if letter == "P":
        last = pc.subtract(_integer(parts[1]), 1)
        inner |= {
            "base_offset": pc.max_element_wise(last, 0),
            "last_offset": last,
            "bytes": pa.array(np.zeros(len(last), np.int64)),
        }
        columns = {
            "type": pa.repeat("produce", count),
            "acks": pa.array(np.full(count, -1, np.int32)),
            "timeout_ms": _integer(fields[3]),
        }
    else:
        inner |= {"fetch_offset": _integer(parts[1]), "max_bytes": _integer(parts[2])}
        follows, stable = pc.equal(fields[5], "leo"), pc.equal(fields[5], "lso")
        columns = {
            "type": pa.repeat("fetch", count),
            "max_wait_ms": _integer(fields[3]),
            "min_bytes": _integer(fields[4]),
            "max_bytes": pa.array(np.full(count, 2**31 - 1)),
            "replica_id": pc.if_else(follows, FOLLOWER, -1).cast(pa.int32()),
            "isolation": pc.if_else(stable, "read_committed", "read_uncommitted"),
        }
    items = pa.StructArray.from_arrays(
        [inner.get(field.name, pa.nulls(len(parts[0]), field.type)).cast(field.type) for field in EVENT_PARTITION],
        fields=list(EVENT_PARTITION),
    )
    borders = np.append(0, np.cumsum(pc.list_value_length(requested).to_numpy(zero_copy_only=False)))
    lists = pa.ListArray.from_arrays(pa.array(borders.astype(np.int32)), items)
    return columns | {"request_id": fields[2].cast(pa.string()), "partitions": lists}


def _change(letter: str, fields: list[pa.Array], numbers: _Numbers) -> dict[str, pa.Array]:
    count = len(fields[0])
    columns = {
        "type": pa.repeat("partition", count),
        "topic": pa.repeat(TOPIC, count),
        "partition": numbers.of(fields[2]),
    }
    if letter == "L":
        return columns | {"change": pa.array([_STANDINGS[word] for word in fields[3].to_pylist()])}
    columns["change"] = pa.repeat(_CHANGES[letter], count)
    if letter != "R":
        columns["offset"] = _integer(fields[3])
    if letter == "A":
        columns["bytes"] = _integer(fields[4])
    return columns


def _table(columns: dict[str, pa.Array], rows: int) -> pa.Table:
    full = {field.name: columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in EVENTS}
    return pa.table(full, EVENTS)


def _empty_logs(parsed: list[pa.Table], partitions: int) -> pa.Table:
    first = min((pc.min(table["time_us"]).as_py() for table in parsed), default=0)
    rows = 3 * partitions
    columns = {
        "seq": pa.array(np.arange(-rows, 0)),
        "time_us": pa.array(np.full(rows, first)),
        "type": pa.repeat("partition", rows),
        "topic": pa.repeat(TOPIC, rows),
        "partition": pa.array(np.repeat(np.arange(partitions), 3)),
        "change": pa.array(["log_end", "high_watermark", "last_stable"] * partitions),
        "offset": pa.array(np.zeros(rows, np.int64)),
    }
    return _table(columns, rows)


def _rolls_at_log_ends(events: pa.Table) -> pa.Table:
    """Set the offsets of segment rolls to the log ends, which the lines do not contain."""
    if not pc.any(pc.equal(events["change"], "segment_roll")).as_py():
        return events
    ends: dict[int, int] = {}
    offsets = events["offset"].to_pylist()
    moves = np.flatnonzero(
        pc.is_in(events["change"], pa.array(["log_end", "truncate", "segment_roll"])).to_numpy(zero_copy_only=False)
    )
    moved = events.select(["partition", "change"]).take(pa.array(moves))
    for at, partition, change in zip(
        moves.tolist(), moved["partition"].to_pylist(), moved["change"].to_pylist(), strict=True
    ):
        if change == "log_end":
            ends[partition] = offsets[at]
        elif change == "truncate":
            ends[partition] = min(offsets[at], ends.get(partition, 0))
        else:
            offsets[at] = ends.get(partition, 0)
    return events.set_column(EVENTS.get_field_index("offset"), EVENTS.field("offset"), pa.array(offsets, pa.int64()))


def outcome_lines(completions: pa.Table, expirations: pa.Table, partitions: list[str]) -> list[str]:
    """Return one line per ended operation, in order of arrival, in the format that Kafka's side writes.

    The fields, separated by tabs, are the request id, `P` (produce) or `F` (fetch), `completed` or `expired`, the time
    of the end in milliseconds, the trigger or `-`, and the bytes of a fetch or the partitions of a produce with their
    status. `partitions` has the name of each partition, by number.
    """
    both = pa.concat_tables([_ended(completions, "completed"), _ended(expirations, "expired")])
    both = both.take(pc.sort_indices(both["operation_id"])).combine_chunks()
    readable = dict(zip((f"{TOPIC}-{number}" for number in range(len(partitions))), partitions, strict=True))
    coded = both["trigger"].combine_chunks().dictionary_encode()
    words = pa.array([readable[word] for word in coded.dictionary.to_pylist()], pa.string())
    trigger = pc.fill_null(words.take(coded.indices), "-")
    produces = pc.equal(both["kind"], "produce")
    parts = both["partitions"].combine_chunks()
    items = parts.flatten()
    errors = items.field("error").dictionary_encode()
    statuses = pa.array([_ERRORS.get(word) for word in errors.dictionary.to_pylist()], pa.string()).take(errors.indices)
    names = pa.array(partitions, pa.string()).take(items.field("partition"))
    answers = pc.binary_join_element_wise(names, statuses, ":")
    listed = pc.binary_join(pa.ListArray.from_arrays(parts.offsets, answers), ",")
    detail = pc.if_else(produces, listed, both["bytes"].cast(pa.string()))
    letter = pc.if_else(produces, "P", "F")
    ended = pc.divide(both["ended_at"].cast(pa.int64()), 1000).cast(pa.string())
    lines = pc.binary_join_element_wise(both["request_id"], letter, both["how"], ended, trigger, detail, "\t")
    return lines.to_pylist()


def _ended(table: pa.Table, how: str) -> pa.Table:
    names = ["operation_id", "request_id", "kind", "trigger", "bytes", "partitions"]
    at = table["completed_at" if how == "completed" else "expired_at"]
    return table.select(names).append_column("ended_at", at).append_column("how", pa.repeat(how, len(table)))
