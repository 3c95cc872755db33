"""Reads the lines of fetches and produces in the layouts that Kafka writes, compiled (`line_scanner`).

It reads a line about three times as fast as `fast_parser`, which reads all other layouts, with the same values. Loading
the compiled code takes as long as it saves in 8,000 lines, so the import of a short log does not load it
(`is_worthwhile`, `use`). The same code finds the partitions of fetch sessions (`ordered_maps`). It is compiled together
with the engine (`rules.warm_up`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from sys import modules
from typing import TYPE_CHECKING, Any, Self

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
from purgatory_udf.sources.request_log.kafka_protocol import FetchColumns, Numbers, ProduceColumns, distinct
from purgatory_udf.sources.request_log.logged_request import MARKER, MAX_BROKER

if TYPE_CHECKING:
    from purgatory_udf.rules.engine.jit.line_layout import LineLayout, Lines, Scan

# Bytes of a log that takes 0.05 s more to read without compiled code, which takes 0.04 s to load.
WORTHWHILE_BYTES = 12 << 20
# Usual size of a line.
LINE_BYTES = 1_400

LISTED, FORGOTTEN, FETCHED = range(3)
WRITTEN_TOPIC, ANSWERED_TOPIC, WRITTEN, ANSWERED = range(4)
_ITEM_COLUMNS, _PRODUCE_ITEM_COLUMNS = 8, 5
_TIMES = ("total", "queue", "local", "remote", "response_queue", "send")
_LIMITS = ("replica", "max_wait_ms", "min_bytes", "max_bytes", "isolation", "session_epoch", "error")


class _Layouts:
    """The layouts of the lines, if the compiled code is used."""

    fetches: LineLayout | None = None
    produces: LineLayout | None = None


def is_worthwhile(number_of_bytes: int) -> bool:
    """Return whether to read a log with compiled code: the log is not short, or this process uses LLVM already."""
    return number_of_bytes >= WORTHWHILE_BYTES or "llvmlite" in modules


def use() -> None:
    """Use the compiled code, unless it has not been compiled; compiling takes longer than most imports."""
    from purgatory_udf.rules.engine.jit import code_cache

    if code_cache.is_complete():
        load()


def load() -> None:
    """Use the compiled code, and compile it if necessary."""
    if not is_loaded():
        _Layouts.fetches, _Layouts.produces = _fetch_layout(), _produce_layout()


def unload() -> None:
    """Leave all lines to `fast_parser` from now on."""
    _Layouts.fetches = _Layouts.produces = None


def is_loaded() -> bool:
    """Return whether `scan_fetches` and `scan_produces` can be called."""
    return _Layouts.fetches is not None


def _line_layout(
    name: str,
    key: int,
    names: Mapping[str, int],
    request: Sequence[Any],
    response: Sequence[Any],
    no_response: str | None = None,
) -> LineLayout:
    """Return the layout of the lines of an API.

    Args:
        name: The API.
        key: Its number.
        names: Scalars of request and response, with default values.
        request: Elements of the request between its braces.
        response: Elements of the response.
        no_response: Text in place of a response, if a line may lack it.
    """
    from purgatory_udf.rules.engine.jit.line_layout import End, LineLayout, Milliseconds, Number, Optional, Text

    start = (
        f'{{"isForwarded":false,"requestHeader":{{"requestApiKey":{key},"requestApiVersion":',
        Number("version"),
        ',"correlationId":',
        Number(),
        ',"clientId":',
        Text("client", 0),
        f',"requestApiKeyName":"{name}"}},"request":{{',
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
    of_all = {**dict.fromkeys(("version", "client", "connection", "listener"), 0), **dict.fromkeys(_TIMES, 0)}
    unanswered = () if no_response is None else (Optional(no_response, (*end, End())),)
    return LineLayout(MARKER, {**of_all, **names}, (*start, *request, '},"response":', *unanswered, *response, *end))


def _endpoints() -> tuple[Any, ...]:
    """Return the elements of `nodeEndpoints`, which a response may have."""
    from purgatory_udf.rules.engine.jit.line_layout import Each, Number, Optional, Text

    endpoint = ('{"nodeId":', Number(), ',"host":', Text(), ',"port":', Number(), ',"rack":', Text(None, 0), "}")
    return (Optional(',"nodeEndpoints":', (Each(endpoint),)),)


def _produce_layout() -> LineLayout:
    from purgatory_udf.rules.engine.jit.line_layout import Each, Item, Number, Optional, Text

    fields = {
        "written": {"id": 0, "name": 0, "partition": 0, "bytes": 0},
        "answered": {"id": 0, "name": 0, "partition": 0, "error": 0, "base": -1},
    }
    names = {f"{kind} {name}": value for kind, values in fields.items() for name, value in values.items()}
    columns = {kind: tuple(f"{kind} {name}" for name in values) for kind, values in fields.items()}

    def topics(kind: str, topic: int, partitions: str, item: int, partition: tuple[Any, ...]) -> Any:
        id_or_name = (
            Optional('"topicId":', (Text(f"{kind} id"),)),
            Optional('"name":', (Text(f"{kind} name"),)),
        )
        of_topic = Item(topic, columns[kind][:2], 0, id_or_name)
        return Each(("{", of_topic, f',"{partitions}":', Each((Item(item, columns[kind], 2, partition),)), "}"))

    written = ('{"index":', Number("written partition"), ',"recordsSizeInBytes":', Number("written bytes"), "}")
    record_error = ('{"batchIndex":', Number(), ',"batchIndexErrorMessage":', Text(None, 0), "}")
    answered = (
        '{"index":',
        Number("answered partition"),
        ',"errorCode":',
        Number("answered error"),
        ',"baseOffset":',
        Number("answered base"),
        Optional(',"logAppendTimeMs":', (Number(),)),
        Optional(',"logStartOffset":', (Number(),)),
        Optional(',"recordErrors":', (Each(record_error), ',"errorMessage":', Text(None, 0))),
        Optional(',"currentLeader":{"leaderId":', (Number(), ',"leaderEpoch":', Number(), "}")),
        "}",
    )
    request = (
        Optional('"transactionalId":', (Text("transaction", 0), ",")),
        '"acks":',
        Number("acks"),
        ',"timeoutMs":',
        Number("timeout_ms"),
        ',"topicData":',
        topics("written", WRITTEN_TOPIC, "partitionData", WRITTEN, written),
    )
    response = (
        '{"responses":',
        topics("answered", ANSWERED_TOPIC, "partitionResponses", ANSWERED, answered),
        Optional(',"throttleTimeMs":', (Number(),)),
        *_endpoints(),
        "}",
    )
    scalars = {"transaction": 0, "acks": 0, "timeout_ms": 0, **names}
    # A produce with acks 0 has no response.
    return _line_layout("PRODUCE", 0, scalars, request, response, no_response='""')


def _fetch_layout() -> LineLayout:
    from purgatory_udf.rules.engine.jit.line_layout import Each, Item, Number, Optional, Text

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
        **dict.fromkeys(("rack", "session", "granted"), 0),
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
    response = (
        "{",
        Optional('"throttleTimeMs":', (Number(), ",")),
        Optional('"errorCode":', (Number("error"), ",")),
        Optional('"sessionId":', (Number("granted"), ",")),
        '"responses":',
        Each(topic("fetched", Each((Item(FETCHED, columns["fetched"], 1, fetched_partition),)))),
        *_endpoints(),
        "}",
    )
    return _line_layout("FETCH", 1, names, request, response)


@dataclass(frozen=True, slots=True)
class ScannedLines:
    """Lines of requests, with the methods and values of `fast_parser.RequestLines`.

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

    def where(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Return the chosen lines."""
        if chosen.all():
            return self
        return type(self)(self.brokers[chosen], self.written_us[chosen], self.layout, self.lines.where(chosen))

    def times(self) -> dict[str, Numbers]:
        """Return the times of `Request` as columns."""
        return times_of(self.written_us, *map(self.scalars, _TIMES))

    def fields(self) -> dict[str, Any]:
        """Return further columns of `Request`, which do not depend on the API."""
        strings = pa.array(self.lines.strings, pa.string())
        clients = self.scalars("client")
        return {
            "connection": strings.take(pa.array(self.scalars("connection"))),
            "listener": strings.take(pa.array(self.scalars("listener"))),
            "forwarded": np.zeros(len(self), bool),
            "client_id": strings.take(pa.array(clients, mask=clients == 0)),
            "version": self.scalars("version"),
        }

    def senders(self) -> tuple[list[tuple[bool, str, str | None]], Numbers]:
        """Return senders, and the place of each line's sender among them; see `fast_parser.RequestLines`."""
        strings, width = self.lines.strings, len(self.lines.strings)
        pairs, places = distinct(self.scalars("listener") * width + self.scalars("client"), width**2)
        numbers = zip(*(each.tolist() for each in np.divmod(pairs, width)), strict=True)
        return [(False, strings[listener], strings[client] if client else None) for listener, client in numbers], places

    def scalars(self, name: str) -> Numbers:
        """Return a scalar of each line."""
        return self.lines.scalars[:, self.layout.place(name)]

    def has_any_item(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return for each line whether any of its items is chosen."""
        number: Numbers = np.append(0, np.cumsum(chosen))[self.lines.bounds]
        return number[1:] > number[:-1]

    def table(self, kind: int, columns: slice) -> tuple[Numbers, Numbers]:
        """Return columns of the items of a kind, and the bounds of each line's rows."""
        is_kind = self.lines.items[:, 0] == kind
        return self.lines.items[is_kind, columns], np.append(0, np.cumsum(is_kind))[self.lines.bounds]


class ScannedFetches(ScannedLines):
    """Lines of fetches, with the methods and values of `fast_parser.FetchLines`."""

    __slots__ = ()

    def has_rack(self) -> npt.NDArray[np.bool_]:
        """Return for each fetch whether its consumer sets `client.rack`."""
        return np.array([bool(name) for name in self.lines.strings], bool)[self.scalars("rack")]

    def sessions(self) -> tuple[Numbers, Numbers]:
        """Return the ids of the sessions in requests and responses."""
        return self.scalars("session"), self.scalars("granted")

    def with_bodies(self) -> tuple[ScannedFetches, FetchColumns]:
        """Return the fetches with usual topics, and their bodies and responses; other fetches need another parser."""
        topics, names, places = _topics_of(self.lines.strings, self.lines.items[:, 1])
        unusual = [number for number, name in zip(topics.tolist(), names, strict=True) if name in _UNUSUAL_TOPICS]
        if unusual:
            return self.where(~self.has_any_item(np.isin(self.lines.items[:, 1], unusual))).with_bodies()

        def table(kind: int, width: int) -> tuple[Numbers, Numbers]:
            rows, bounds = self.table(kind, slice(1, width + 1))
            rows[:, 0] = places[rows[:, 0]]
            return rows, bounds

        limits = np.column_stack([self.scalars(name) for name in _LIMITS])
        fetched, fetched_bounds = table(FETCHED, 8)
        fetched[:, 4] = np.maximum(0, fetched[:, 4])
        listed, forgotten = table(LISTED, 6), table(FORGOTTEN, 2)
        return self, FetchColumns(names, limits, *listed, *forgotten, fetched, fetched_bounds)


class ScannedProduces(ScannedLines):
    """Lines of produces, with the methods and values of `fast_parser.ProduceLines`."""

    __slots__ = ()

    def with_bodies(self) -> tuple[ScannedProduces, ProduceColumns]:
        """Return the produces with usual topics, and their bodies and responses; others need another parser."""
        strings, items = self.lines.strings, self.lines.items
        # A topic has either an id or a name; the number of the other one is 0.
        ids, names = items[:, 1], items[:, 2]
        unusual = [number for number, name in enumerate(strings) if name in _UNUSUAL_TOPICS]
        is_unusual = ((ids == 0) == (names == 0)) | np.isin(np.maximum(ids, names), unusual)
        if is_unusual.any():
            return self.where(~self.has_any_item(is_unusual)).with_bodies()
        _, topics, places = _topics_of(strings, np.maximum(ids, names))

        def table(kind: int, width: int) -> tuple[Numbers, Numbers]:
            rows, bounds = self.table(kind, slice(1, width + 1))
            return np.column_stack([places[np.maximum(rows[:, 0], rows[:, 1])], rows[:, 2:]]), bounds

        written, written_bounds = table(WRITTEN, 4)
        written[:, 2] = np.maximum(0, written[:, 2])
        transactions = [strings[number] if number else None for number in self.scalars("transaction").tolist()]
        limits = np.column_stack([self.scalars("acks"), self.scalars("timeout_ms")])
        answered = table(ANSWERED, 5)
        return self, ProduceColumns.of(topics, transactions, limits, (written, written_bounds), answered)


def _topics_of(strings: Sequence[str], numbers: Numbers) -> tuple[Numbers, list[str], Numbers]:
    """Return the numbers of the strings that are topics, their names, and the place of each string among them."""
    is_topic = np.zeros(len(strings), bool)
    is_topic[numbers] = True
    topics = np.flatnonzero(is_topic)
    return topics, [strings[number] for number in topics.tolist()], np.cumsum(is_topic) - 1


_UNUSUAL_TOPICS = {*OTHER_TOPICS, ""}


def scan_fetches(lines: Lines, zone: tzinfo) -> ScannedFetches:
    """Read fetches in Kafka's layout, and leave out all other lines.

    `zone` is the time zone of timestamps without a zone.
    """
    return ScannedFetches(*_scanned(lines, zone, _Layouts.fetches, _ITEM_COLUMNS))


def scan_produces(lines: Lines, zone: tzinfo) -> ScannedProduces:
    """Read produces in Kafka's layout; see `scan_fetches`."""
    return ScannedProduces(*_scanned(lines, zone, _Layouts.produces, _PRODUCE_ITEM_COLUMNS))


def _scanned(
    lines: Lines, zone: tzinfo, layout: LineLayout | None, item_columns: int
) -> tuple[Numbers, Numbers, LineLayout, Scan]:
    """Return the attributes of `ScannedLines` for the lines with a layout."""
    from purgatory_udf.rules.engine.jit.line_layout import AROUND, DIGITS, FRACTION, SECOND
    from purgatory_udf.rules.engine.jit.line_scanner import scan

    if layout is None:
        raise ValueError("the compiled code is not loaded")
    found = scan(lines, layout, item_columns)
    seconds, fractions = found.scalars[:, SECOND], found.scalars[:, FRACTION]
    # Few lines differ in the text between time and message, so it is parsed once for each text.
    width = 1 + int(found.scalars[:, DIGITS].max(initial=0))
    heads, places = distinct(found.scalars[:, AROUND] * width + found.scalars[:, DIGITS], len(found.strings) * width)
    parsed = [after_time(found.strings[head // width].encode(), head % width) for head in heads.tolist()]
    is_utc, brokers = np.array(parsed, np.int64).reshape(-1, 2)[places].T
    days, time = np.divmod(seconds, 1_000_000)
    hours, rest = np.divmod(time, 10_000)
    minutes, second = np.divmod(rest, 100)
    written = (hours * 3600 + minutes * 60 + second) * 1_000_000 + fractions
    valid = (is_utc != OTHER_LAYOUT) & (brokers <= MAX_BROKER) & (hours < 24) & (minutes < 60) & (second < 60)
    versions = found.scalars[:, layout.place("version")]
    valid &= (versions >= -(2**31)) & (versions < 2**31)
    written, valid = add_midnights(written, valid, days, is_utc, zone)
    return brokers[valid], written[valid], layout, found.where(valid)
