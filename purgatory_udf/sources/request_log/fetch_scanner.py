"""Reads the lines of fetches in the layout that Kafka writes, compiled (`line_scanner`).

It reads a line about three times as fast as `fast_parser`, which reads all other layouts, with the same values. Loading
the compiled code takes as long as it saves in 8,000 lines, so the import of a short log does not load it
(`is_worthwhile`, `use`). It is compiled together with the engine (`rules.warm_up`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from sys import modules
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory_udf.sources.request_log.fast_parser import (
    OTHER_LAYOUT,
    OTHER_TOPICS,
    add_midnights,
    after_time,
    times_of,
)
from purgatory_udf.sources.request_log.kafka_protocol import FetchColumns, Numbers
from purgatory_udf.sources.request_log.logged_request import MARKER, MAX_BROKER

if TYPE_CHECKING:
    from purgatory_udf.rules.engine.jit.line_layout import LineLayout, Scan, ScanLines

# Bytes of a log that takes 0.05 s more to read without compiled code, which takes 0.04 s to load.
WORTHWHILE_BYTES = 12 << 20
# Usual size of a line.
LINE_BYTES = 1_400

LISTED, FORGOTTEN, FETCHED = range(3)
_ITEM_COLUMNS = 8
_TIMES = ("total", "queue", "local", "remote", "response_queue", "send")
_LIMITS = ("replica", "max_wait_ms", "min_bytes", "max_bytes", "isolation", "session_epoch", "error")


class _Loaded:
    """The layout of the lines and the compiled code, if it is loaded."""

    layout: LineLayout | None = None
    scan_lines: ScanLines


def is_worthwhile(number_of_bytes: int) -> bool:
    """Return whether to read a log with compiled code: the log is not short, or this process uses LLVM already."""
    return number_of_bytes >= WORTHWHILE_BYTES or "llvmlite" in modules


def use() -> None:
    """Load the compiled code, unless it has not been compiled; compiling takes longer than most imports."""
    if _Loaded.layout is None:
        from purgatory_udf.rules.engine.jit import line_layout

        stored = line_layout.stored_code()
        if stored is not None:
            _Loaded.layout, _Loaded.scan_lines = _layout(), stored


def load() -> None:
    """Load the compiled code, and compile it if necessary."""
    if _Loaded.layout is None:
        from purgatory_udf.rules.engine.jit import line_scanner

        _Loaded.layout, _Loaded.scan_lines = _layout(), line_scanner.load_code()


def unload() -> None:
    """Leave all lines to `fast_parser` from now on."""
    _Loaded.layout = None


def is_loaded() -> bool:
    """Return whether `scan_fetches` can be called."""
    return _Loaded.layout is not None


def _layout() -> LineLayout:
    from purgatory_udf.rules.engine.jit.line_layout import Each, Item, LineLayout, Milliseconds, Number, Optional, Text

    def topic(kind: str, *partitions: Any) -> tuple[Any, ...]:
        return ('{"topic', Optional("Id"), '":', Text(f"{kind} topic"), ',"partitions":', *partitions, "}")

    listed = {"topic": 0, "partition": 0, "offset": 0, "max_bytes": 0, "leader_epoch": -1, "log_start": -1}
    forgotten = {"topic": 0, "partition": 0}
    fetched = {
        "topic": 0,
        "partition": 0,
        "error": 0,
        "high_watermark": -1,
        "bytes": 0,
        "diverging_end_offset": -1,
        "preferred_replica": -1,
        "last_stable": -1,
    }
    items = {"listed": listed, "forgotten": forgotten, "fetched": fetched}
    columns = {kind: tuple(f"{kind} {name}" for name in names) for kind, names in items.items()}
    names = {
        **dict.fromkeys(("version", "client", "rack", "session", "granted", "connection", "listener"), 0),
        **dict.fromkeys(_TIMES, 0),
        **dict(zip(_LIMITS, (-1, 0, 0, 2**31 - 1, 0, -1, 0), strict=True)),
        **{f"{kind} {name}": value for kind, values in items.items() for name, value in values.items()},
    }
    listed_partition = (
        '{"partition":',
        Number("listed partition"),
        Optional(',"currentLeaderEpoch":', (Number("listed leader_epoch"),)),
        ',"fetchOffset":',
        Number("listed offset"),
        Optional(',"lastFetchedEpoch":', (Number(),)),
        Optional(',"logStartOffset":', (Number("listed log_start"),)),
        ',"partitionMaxBytes":',
        Number("listed max_bytes"),
        Optional(',"replicaDirectoryId":', (Text(),)),
        Optional(',"highWatermark":', (Number(),)),
        "}",
    )
    aborted = ('{"producerId":', Number(), ',"firstOffset":', Number(), "}")
    fetched_partition = (
        '{"partitionIndex":',
        Number("fetched partition"),
        ',"errorCode":',
        Number("fetched error"),
        ',"highWatermark":',
        Number("fetched high_watermark"),
        Optional(',"lastStableOffset":', (Number("fetched last_stable"),)),
        Optional(',"logStartOffset":', (Number(),)),
        Optional(
            ',"divergingEpoch":{"epoch":', (Number(), ',"endOffset":', Number("fetched diverging_end_offset"), "}")
        ),
        Optional(',"currentLeader":{"leaderId":', (Number(), ',"leaderEpoch":', Number(), "}")),
        Optional(',"abortedTransactions":null'),
        Optional(',"abortedTransactions":', (Each(aborted),)),
        Optional(',"preferredReadReplica":', (Number("fetched preferred_replica"),)),
        Optional(',"recordsSizeInBytes":', (Number("fetched bytes"),)),
        "}",
    )
    request = (
        Optional('"clusterId":', (Text(None, 0), ",")),
        Optional('"replicaId":', (Number("replica"), ",")),
        Optional('"replicaState":{"replicaId":', (Number("replica"), ',"replicaEpoch":', Number(), "},")),
        '"maxWaitMs":',
        Number("max_wait_ms"),
        ',"minBytes":',
        Number("min_bytes"),
        Optional(',"maxBytes":', (Number("max_bytes"),)),
        Optional(',"isolationLevel":', (Number("isolation"),)),
        Optional(',"sessionId":', (Number("session"),)),
        Optional(',"sessionEpoch":', (Number("session_epoch"),)),
        ',"topics":',
        Each(topic("listed", Each((Item(LISTED, columns["listed"], 1, listed_partition),), may_be_empty=False))),
        Optional(
            ',"forgottenTopicsData":',
            (
                Each(
                    topic(
                        "forgotten",
                        Each((Item(FORGOTTEN, columns["forgotten"], 1, (Number("forgotten partition"),)),)),
                    )
                ),
            ),
        ),
        Optional(',"rackId":', (Text("rack"),)),
    )
    endpoint = ('{"nodeId":', Number(), ',"host":', Text(), ',"port":', Number(), ',"rack":', Text(None, 0), "}")
    response = (
        "{",
        Optional('"throttleTimeMs":', (Number(), ",")),
        Optional('"errorCode":', (Number("error"), ",")),
        Optional('"sessionId":', (Number("granted"), ",")),
        '"responses":',
        Each(topic("fetched", Each((Item(FETCHED, columns["fetched"], 1, fetched_partition),)))),
        Optional(',"nodeEndpoints":', (Each(endpoint),)),
        "}",
    )
    end = (
        ',"connection":',
        Text("connection"),
        ',"totalTimeMs":',
        Milliseconds("total"),
        ',"requestQueueTimeMs":',
        Milliseconds("queue"),
        ',"localTimeMs":',
        Milliseconds("local"),
        ',"remoteTimeMs":',
        Milliseconds("remote"),
        ',"throttleTimeMs":',
        Milliseconds(),
        ',"responseQueueTimeMs":',
        Milliseconds("response_queue"),
        ',"sendTimeMs":',
        Milliseconds("send"),
        Optional(',"securityProtocol":', (Text(),)),
        Optional(',"principal":', (Text(),)),
        ',"listener":',
        Text("listener"),
        Optional(',"clientInformation":{"softwareName":', (Text(), ',"softwareVersion":', Text(), "}")),
        "}",
    )
    line = (
        '{"isForwarded":false,"requestHeader":{"requestApiKey":1,"requestApiVersion":',
        Number("version"),
        ',"correlationId":',
        Number(),
        ',"clientId":',
        Text("client", 0),
        ',"requestApiKeyName":"FETCH"},"request":{',
        *request,
        '},"response":',
        *response,
        *end,
    )
    return LineLayout(MARKER, names, line)


@dataclass(frozen=True, slots=True)
class ScannedFetches:
    """Lines of fetches, with the methods and values of `fast_parser.FetchLines`.

    Attributes:
        brokers: Broker ids; `NO_BROKER` for a line without one.
        written_us: Timestamps of the lines.
        layout: The layout of the lines.
        lines: The lines.
    """

    brokers: Numbers
    written_us: Numbers
    layout: LineLayout
    lines: Scan

    def __len__(self) -> int:
        return len(self.brokers)

    @property
    def numbers(self) -> Numbers:
        """Places of the lines in the input."""
        return self.lines.numbers

    def where(self, chosen: npt.NDArray[np.bool_]) -> ScannedFetches:
        """Return the chosen lines."""
        if chosen.all():
            return self
        return ScannedFetches(self.brokers[chosen], self.written_us[chosen], self.layout, self.lines.where(chosen))

    def times(self) -> dict[str, Numbers]:
        """Return the times of `Request` as columns."""
        return times_of(self.written_us, *map(self._scalar, _TIMES))

    def fields(self) -> dict[str, Any]:
        """Return further columns of `Request`, which do not depend on the API."""
        strings = pa.array(self.lines.strings, pa.string())
        clients = self._scalar("client")
        return {
            "connection": strings.take(pa.array(self._scalar("connection"))),
            "listener": strings.take(pa.array(self._scalar("listener"))),
            "forwarded": np.zeros(len(self), bool),
            "client_id": strings.take(pa.array(clients, mask=clients == 0)),
            "version": self._scalar("version"),
        }

    def senders(self) -> list[tuple[bool, str, str | None]]:
        """Return whether each fetch was forwarded, its listener and its client."""
        strings = self.lines.strings
        pairs = zip(self._scalar("listener").tolist(), self._scalar("client").tolist(), strict=True)
        return [(False, strings[listener], strings[client] if client else None) for listener, client in pairs]

    def has_rack(self) -> npt.NDArray[np.bool_]:
        """Return for each fetch whether its consumer sets `client.rack`."""
        return np.array([bool(name) for name in self.lines.strings], bool)[self._scalar("rack")]

    def sessions(self) -> tuple[Numbers, Numbers]:
        """Return the ids of the sessions in requests and responses."""
        return self._scalar("session"), self._scalar("granted")

    def with_bodies(self) -> tuple[ScannedFetches, FetchColumns]:
        """Return the fetches with usual topics, and their bodies and responses; other fetches need another parser."""
        items, strings = self.lines.items, self.lines.strings
        is_topic = np.zeros(len(strings), bool)
        is_topic[items[:, 1]] = True
        topics = np.flatnonzero(is_topic)
        names = [strings[number] for number in topics.tolist()]
        unusual = [number for number, name in zip(topics.tolist(), names, strict=True) if name in _UNUSUAL_TOPICS]
        if unusual:
            # Whether each fetch has an item with an unusual topic.
            passed = np.append(0, np.cumsum(np.isin(items[:, 1], unusual)))[self.lines.bounds]
            return self.where(np.diff(passed) == 0).with_bodies()
        places = np.cumsum(is_topic) - 1

        def table(kind: int, width: int) -> tuple[Numbers, Numbers]:
            is_kind = items[:, 0] == kind
            rows = items[is_kind, 1 : width + 1]
            rows[:, 0] = places[rows[:, 0]]
            return rows, np.append(0, np.cumsum(is_kind))[self.lines.bounds]

        limits = np.column_stack([self._scalar(name) for name in _LIMITS])
        fetched, fetched_bounds = table(FETCHED, 8)
        fetched[:, 4] = np.maximum(0, fetched[:, 4])
        listed, forgotten = table(LISTED, 6), table(FORGOTTEN, 2)
        return self, FetchColumns(names, limits, *listed, *forgotten, fetched, fetched_bounds)

    def _scalar(self, name: str) -> Numbers:
        return self.lines.scalars[:, self.layout.place(name)]


_UNUSUAL_TOPICS = {*OTHER_TOPICS, ""}


def scan_fetches(lines: Sequence[bytes], zone: tzinfo) -> ScannedFetches:
    """Read fetches in Kafka's layout, and leave out all other lines.

    `zone` is the time zone of timestamps without a zone.
    """
    from purgatory_udf.rules.engine.jit.line_layout import AROUND, DIGITS, FRACTION, SECOND, scan

    layout = _Loaded.layout
    if layout is None:
        raise ValueError("the compiled code is not loaded")
    found = scan(lines, layout, _ITEM_COLUMNS, _Loaded.scan_lines)
    seconds, fractions = found.scalars[:, SECOND], found.scalars[:, FRACTION]
    # Few lines differ in the text between time and message, so it is parsed once for each text.
    heads, of_line = np.unique(found.scalars[:, [AROUND, DIGITS]], axis=0, return_inverse=True)
    parsed = [after_time(found.strings[around].encode(), digits) for around, digits in heads.tolist()]
    is_utc, brokers = np.array(parsed, np.int64).reshape(-1, 2)[of_line.reshape(-1)].T
    days, time = np.divmod(seconds, 1_000_000)
    hours, rest = np.divmod(time, 10_000)
    minutes, second = np.divmod(rest, 100)
    written = (hours * 3600 + minutes * 60 + second) * 1_000_000 + fractions
    valid = (is_utc != OTHER_LAYOUT) & (brokers <= MAX_BROKER) & (hours < 24) & (minutes < 60) & (second < 60)
    versions = found.scalars[:, layout.place("version")]
    valid &= (versions >= -(2**31)) & (versions < 2**31)
    written, valid = add_midnights(written, valid, days, is_utc, zone)
    return ScannedFetches(brokers, written, layout, found).where(valid)
