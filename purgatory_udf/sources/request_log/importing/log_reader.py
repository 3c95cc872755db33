"""Reader of log files in pieces: a row for each relevant request, each bad line, and the end of each piece.

Lines are counted within their piece, because pieces are read in parallel. The last row of a piece has its number of
lines, from which the lines before each piece follow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import tzinfo
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from purgatory_udf.contract import Rejection
from purgatory_udf.rules.engine.jit.line_layout import Lines
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_context import NO_REMOTE_WAITS, RemoteWaits
from purgatory_udf.sources.request_log.cluster_facts import CLUSTER_APIS
from purgatory_udf.sources.request_log.cluster_metadata import HEARTBEAT, permits_shutdown
from purgatory_udf.sources.request_log.complete_parser import TEXT_FORMAT, read_line
from purgatory_udf.sources.request_log.fast_parser import (
    FetchLines,
    ProduceLines,
    UnparsedRequest,
    parse_fetches,
    parse_line,
    parse_produces,
)
from purgatory_udf.sources.request_log.fetch_conversion import READ_COMMITTED
from purgatory_udf.sources.request_log.fetch_sessions import session_key, session_keys
from purgatory_udf.sources.request_log.group_conversion import CONSUMER_HEARTBEAT, LEFT_OUT_HEARTBEATS
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    RequestRow,
    batch_of_rows,
    fetch_batch,
    from_json,
    produce_batch,
    request_batch,
    request_row,
    row_of_texts,
)
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchColumns,
    Numbers,
    ProduceColumns,
    decode_fetch_request,
    decode_fetch_response,
)
from purgatory_udf.sources.request_log.log_files import broker_of
from purgatory_udf.sources.request_log.logged_request import (
    MALFORMED,
    NO_BROKER,
    BadLine,
    Place,
    Request,
    malformed_line,
)
from purgatory_udf.sources.request_log.request_conversion import (
    CONVERTED_APIS,
    LIST_OFFSETS,
    is_controller_request,
    is_sent_to_controller,
    looked_up_topics,
    looks_up,
    skip_cause,
)
from purgatory_udf.sources.request_log.share_conversion import SHARE_APIS, share_session_key
from purgatory_udf.sources.trace_files.text_lines import Piece, lines_of

Row = dict[str, Any]
# The row of a request or of a bad line, or a fetch with decoded body and response.
AnyRow = RequestRow | Request | Row | None
# Columns of a fetch that have the names of attributes of `Request`.
_OF_REQUESTS = (
    *("broker", "version", "client_id", "connection", "listener", "forwarded", "arrival_us", "start_us", "local_us"),
    *("remote_us", "answered_us", "written_us"),
)

REQUEST, BAD, END = "request", "bad", "end"
LATE = "late: events of its time are already written; increase --hold-ms"

# A bad line has `rule`, `reason` and `raw`; the end of a piece has `line`, and JSON in `counts` and `body`.
READ = pa.schema(
    [
        ("row", pa.string()),
        ("piece", pa.int32()),
        ("rule", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        ("counts", pa.string()),
        *REQUESTS,
    ]
)


# APIs with responses that show the version of the broker: Kafka 4.0 has dropped versions 0 to 3 of fetches (KIP-896),
# and a broker of an earlier version that accepts heartbeats of consumer groups has the new coordinator, too.
VERSION_APIS = frozenset({CONSUMER_HEARTBEAT, "API_VERSIONS"})
FETCH_KEY, FIRST_FETCH_VERSION = 1, 4
REFUSALS = errors.REFUSED_BY_COORDINATOR | {errors.UNSUPPORTED_VERSION}


@dataclass
class Tally:
    """Totals of the lines of a piece.

    Attributes:
        counts: Counts by cause.
        partitions: By topic or topic id, the number of partitions that followers fetch.
        modern_groups: Streams and share groups.
        consumer_brokers: Brokers that coordinate consumer groups.
        new_brokers: Brokers with the group coordinator of Kafka 4.0.
        span_us: First arrival and last response.
        heartbeats: By broker, the heartbeats answered by the thread that handled them, and the number of heartbeats.
        remote_waits: Topics of requests that waited for remote storage.
        follower_fetches: Number of fetches of followers by maximum wait and minimum bytes.
    """

    counts: Counter[str] = field(default_factory=Counter)
    partitions: dict[str, int] = field(default_factory=dict)
    modern_groups: set[str] = field(default_factory=set)
    consumer_brokers: set[int] = field(default_factory=set)
    new_brokers: set[int] = field(default_factory=set)
    span_us: tuple[int, int] | None = None
    heartbeats: dict[int, tuple[int, int]] = field(default_factory=dict)
    remote_waits: RemoteWaits = NO_REMOTE_WAITS
    follower_fetches: Counter[tuple[int, int]] = field(default_factory=Counter)

    def count_skipped(self, request: Request) -> None:
        """Count a request that never waits in a purgatory of a broker."""
        if request.api in LEFT_OUT_HEARTBEATS and isinstance(request.body.get("groupId"), str):
            self.modern_groups.add(request.body["groupId"])
            self.counts["modern_group"] += 1
        else:
            self.counts[skip_cause(request)] += 1

    def needs_version(self, api: str, broker: int) -> bool:
        """Return whether a response of one of `VERSION_APIS` may show something new about the broker."""
        return broker not in (self.consumer_brokers if api == CONSUMER_HEARTBEAT else self.new_brokers)

    def count_version(self, broker: int, api: str, answer: dict[str, Any]) -> None:
        """Record that the broker has the new group coordinator, if the response shows it; see `VERSION_APIS`."""
        if api == CONSUMER_HEARTBEAT:
            if answer.get("errorCode") not in REFUSALS:
                self.new_brokers.add(broker)
                self.consumer_brokers.add(broker)
        elif any(
            supported["apiKey"] == FETCH_KEY and supported["minVersion"] >= FIRST_FETCH_VERSION
            for supported in answer.get("apiKeys") or ()
        ):
            self.new_brokers.add(broker)

    def count_fetches(self, fetches: FetchColumns, remote_us: Numbers, racked: int) -> None:
        """Count fetches that become rows.

        Args:
            fetches: Their bodies and responses.
            remote_us: How long each of them waited.
            racked: Number of fetches of consumers that set `client.rack`.
        """
        if racked:
            self.counts["racked"] += racked
        replica, max_wait_ms, min_bytes, _, isolation, *_ = fetches.limits.T
        size = np.diff(np.append(0, np.cumsum(fetches.fetched[:, 4]))[fetches.fetched_bounds])
        waited = (remote_us != 0) & (replica < 0) & (size == 0) & (isolation != READ_COMMITTED)
        can_show = (np.diff(fetches.listed_bounds) > 0) & (np.diff(fetches.fetched_bounds) > 0)
        for number in np.flatnonzero(waited & can_show).tolist():
            self._note_remote_wait(fetches, number)
        follows = replica >= 0
        self.follower_fetches.update(zip(max_wait_ms[follows].tolist(), min_bytes[follows].tolist(), strict=True))
        listed = fetches.listed[np.repeat(follows, np.diff(fetches.listed_bounds)), :2]
        for topic, partition in dict.fromkeys(map(tuple, listed.tolist())):
            name = fetches.topics[topic]
            self.partitions[name] = max(0, partition + 1, self.partitions.get(name, 0))

    def count_span(self, first_us: int, last_us: int) -> None:
        """Count requests that become rows; the first of them arrived, and the last was answered at these times."""
        first, last = self.span_us or (first_us, last_us)
        self.span_us = min(first, first_us), max(last, last_us)

    def count_request(self, request: Request) -> None:
        """Count a request other than a fetch, except for its times."""
        if request.api == LIST_OFFSETS and request.remote_us and (topics := looked_up_topics(request.body)):
            self.remote_waits |= RemoteWaits(lookups=frozenset({topics}))
        if request.api == "HEARTBEAT":
            own_thread, total = self.heartbeats.get(request.broker, (0, 0))
            self.heartbeats[request.broker] = own_thread + (request.remote_us == 0), total + 1

    def _note_remote_wait(self, fetches: FetchColumns, number: int) -> None:
        """Record the topics for whose remote storage a consumer's fetch waited; it returned nothing after a wait.

        A fetch in the purgatory Fetch reads the log again when it ends, and returns the records up to the high
        watermark. If a fetch returns no records although there are some, it waited for remote storage instead.
        """
        listed = fetches.listed[slice(*fetches.listed_bounds[number : number + 2].tolist()), :3].tolist()
        fetched = fetches.fetched[slice(*fetches.fetched_bounds[number : number + 2].tolist()), :4].tolist()
        offsets = {(topic, partition): offset for topic, partition, offset in listed}
        for topic, partition, error, high_watermark in fetched:
            if not error and high_watermark > offsets.get((topic, partition), high_watermark):
                self.remote_waits |= RemoteWaits(frozenset({fetches.topics[topic]}))

    def end(self, **place: Any) -> pa.RecordBatch:
        totals = {
            "partitions": self.partitions,
            "modern_groups": sorted(self.modern_groups),
            "consumer_brokers": sorted(self.consumer_brokers),
            "new_brokers": sorted(self.new_brokers),
            "span_us": self.span_us,
            "heartbeats": list(self.heartbeats.items()),
            "remote_waits": self.remote_waits.snapshot(),
            "follower_fetches": [[*limits, number] for limits, number in self.follower_fetches.items()],
        }
        row = {"row": END, **place, "counts": json.dumps(self.counts), "body": json.dumps(totals)}
        return batch_of_rows([row], READ)

    @classmethod
    def of(cls, ends: Iterable[tuple[str, str]]) -> Tally:
        """Return the sum of the totals of pieces, given `counts` and `body` of their last rows."""
        total = cls()
        for counts, body in ends:
            totals = json.loads(body)
            total.counts.update(json.loads(counts))
            total.partitions = most_partitions([total.partitions, totals["partitions"]])
            total.modern_groups.update(totals["modern_groups"])
            total.remote_waits |= RemoteWaits.resumed(totals["remote_waits"])
            for wait_ms, size, number in totals["follower_fetches"]:
                total.follower_fetches[wait_ms, size] += number
            total.consumer_brokers.update(totals["consumer_brokers"])
            total.new_brokers.update(totals["new_brokers"])
            spans = [span for span in (total.span_us, totals["span_us"]) if span]
            total.span_us = (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None
            for broker, (own_thread, count) in totals["heartbeats"]:
                before = total.heartbeats.get(broker, (0, 0))
                total.heartbeats[broker] = before[0] + own_thread, before[1] + count
        return total


def most_partitions(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the largest number of partitions of each topic."""
    most: dict[str, int] = {}
    for tally in tallies:
        for topic, count in tally.items():
            most[topic] = max(count, most.get(topic, 0))
    return most


# Bytes of lines that are decoded at once: many, because a short column takes almost as long as a long one.
BLOCK_BYTES = 8 << 20
# Size of the batches of a piece: few, because writing each of their columns to a file takes time.
_BATCH_BYTES = 2 << 20


def read_piece(piece: Piece, zone: tzinfo, compiled: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the READ rows of a piece of a log file.

    Args:
        piece: The piece.
        zone: Time zone of timestamps without one.
        compiled: Whether to load compiled code for fetches and produces (`compiled_parser`).
    """
    if compiled:
        compiled_parser.use()
    yield from _by_kind(_small_batches_of(piece, zone))


def _by_kind(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, but fetches, produces, other requests and other rows apart.

    Selecting all rows of a batch, or none, copies nothing.
    """
    held: dict[tuple[str, str | None], list[pa.RecordBatch]] = {}
    size = 0
    for batch in batches:
        as_columns = batch.column("limits")[0].is_valid
        kind = batch.column("row")[0].as_py(), batch.column("api")[0].as_py() if as_columns else None
        held.setdefault(kind, []).append(batch)
        size += batch.nbytes
        if size >= _BATCH_BYTES:
            yield from map(_concatenated, held.values())
            held, size = {}, 0
    yield from map(_concatenated, held.values())


def _concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch


def _small_batches_of(piece: Piece, zone: tzinfo) -> Iterator[pa.RecordBatch]:
    tally = Tally()
    by_path = broker_of(piece.source.name)
    first = 1
    for chunk in lines_of(piece, BLOCK_BYTES, Lines.of_text):
        rows, lines = Rows(tally, piece.index), np.arange(first, first + len(chunk.items))
        first += len(lines)
        rejected = {**chunk.cut, **({len(lines) - 1: chunk.broken} if chunk.broken else {})}
        whole = [b"" if number in rejected else raw for number, raw in enumerate(chunk.items)] if rejected else None
        files = np.full(len(lines), piece.file)
        is_read = rows.add_lines(whole or chunk.items, files, lines, zone, by_path)
        for number in np.flatnonzero(~is_read).tolist():
            raw, place = chunk.items[number], Place(piece.file, first - len(lines) + number)
            if number in rejected:
                rows.add(_cut(raw, place, rejected[number], tally))
            else:
                rows.add(_row(raw, place, zone, by_path, tally))
        yield from rows.batches()
    tally.counts["lines"] = first - 1
    yield tally.end(file=piece.file, piece=piece.index, line=first - 1)


def read_messages(
    zone: tzinfo, since_us: int, compiled: bool = False
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the step that reads messages (partition, offset, value), each of which is a line.

    Args:
        zone: Time zone of timestamps without one.
        since_us: A request that a broker handled before this time is rejected as late.
        compiled: Whether to load compiled code for fetches and produces (`compiled_parser`).
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if compiled:
            compiled_parser.use()
        tally = Tally()
        yield from _by_kind(small_batches(batches, tally))
        yield tally.end()

    def small_batches(batches: Iterator[pa.RecordBatch], tally: Tally) -> Iterator[pa.RecordBatch]:
        for batch in chain.from_iterable(map(_in_small_batches, batches)):
            rows = Rows(tally)
            tally.counts["lines"] += batch.num_rows
            files, lines = (batch.column(name).to_numpy() for name in ("partition", "offset"))
            texts = _lines_in(batch.column("value").cast(pa.binary()))
            is_read = rows.add_lines(texts, files, lines, zone, None, since_us)
            for number in np.flatnonzero(~is_read).tolist():
                place, text = Place(int(files[number]), int(lines[number])), texts[number]
                row = _row(text, place, zone, None, tally)
                rows.add(in_time(row, since_us, text.decode(), tally))
            yield from rows.batches()

    return work


def _lines_in(values: pa.BinaryArray) -> Lines:
    """Return the values of a column, none of which is null."""
    _, offsets, text = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    return Lines(memoryview(text or b""), bounds[:-1], bounds[1:])


# Messages that are decoded at once; the fetches of 1,000 lines take about 2 MB.
_LINES = 3_000


def _in_small_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, _LINES) for start in range(0, batch.num_rows, _LINES))


_Requests = FetchLines | ProduceLines | compiled_parser.ScannedFetches | compiled_parser.ScannedProduces


class Rows:
    """Collects the rows of requests and bad lines of a chunk, to convert them to READ batches; `tally` counts them."""

    def __init__(self, tally: Tally, piece: int | None = None) -> None:
        self._tally, self._piece = tally, piece
        self._requests: list[RequestRow] = []
        self._fetches: list[Request] = []
        self._bad: list[Row] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, row: RequestRow | Request | Row | None) -> None:
        """Add the row of a request or a bad line, or a decoded fetch; count the times of requests."""
        if isinstance(row, (RequestRow, Request)):
            self._tally.count_span(row.arrival_us, row.answered_us)
        if isinstance(row, RequestRow):
            self._requests.append(row)
        elif isinstance(row, Request):
            self._fetches.append(row)
        elif row is not None:
            self._bad.append({**row, "piece": self._piece})

    def add_lines(
        self,
        lines: Sequence[bytes],
        files: npt.NDArray[Any],
        numbers: npt.NDArray[Any],
        zone: tzinfo,
        by_path: int | None,
        since_us: int | None = None,
    ) -> npt.NDArray[np.bool_]:
        """Add and count the fetches and produces that the fast parsers read; return which lines these are.

        Args:
            lines: The lines.
            files: Their files.
            numbers: Their numbers within the files.
            zone: Time zone of timestamps without one.
            by_path: The broker id in the file's path, for lines without a broker id; None if it has none.
            since_us: If given, requests that a broker handled before this time are left out.
        """
        is_read = np.zeros(len(lines), bool)
        lines = Lines.of(lines)
        compiled = (compiled_parser.scan_fetches, compiled_parser.scan_produces) if compiled_parser.is_loaded() else ()
        parsers: list[Callable[[Lines, tzinfo], _Requests]] = [*compiled, parse_fetches, parse_produces]
        for parse in parsers:
            places = np.flatnonzero(~is_read)
            found = parse(lines.at(places), zone)
            if len(found):
                is_read[self._add_columns(found, places, files, numbers, by_path, since_us)] = True
        return is_read

    def _add_columns(
        self,
        found: _Requests,
        places: npt.NDArray[Any],
        files: npt.NDArray[Any],
        numbers: npt.NDArray[Any],
        by_path: int | None,
        since_us: int | None,
    ) -> npt.NDArray[Any]:
        """Add and count fetches or produces, which were found among the lines at `places`; return their places.

        See `add_lines` for the other arguments.
        """
        counts = self._tally.counts
        if by_path is None:
            found = found.where(found.brokers != NO_BROKER)
        if since_us is not None:
            found = found.where(found.times()["start_us"] >= since_us)
        senders, of_line = found.senders()
        skipped = np.array([is_sent_to_controller(*sender) for sender in senders], bool)[of_line]
        relevant, bodies = found.where(~skipped).with_bodies()
        skipped_brokers = found.brokers[skipped]
        of_lines = {
            "requests": len(relevant) + len(skipped_brokers),
            "no_broker": np.sum(relevant.brokers == NO_BROKER) + np.sum(skipped_brokers == NO_BROKER),
            "controller": len(skipped_brokers),
        }
        counts.update({cause: int(number) for cause, number in of_lines.items() if number})
        read = places[relevant.numbers]
        if len(relevant):
            times, fields = relevant.times(), relevant.fields()
            self._tally.count_span(int(np.min(times["arrival_us"])), int(np.max(times["answered_us"])))
            connections = pa.array(fields["connection"], pa.string())
            columns = {
                **times,
                **fields,
                "file": files[read],
                "line": numbers[read],
                "broker": np.where(relevant.brokers == NO_BROKER, by_path or 0, relevant.brokers),
                "connection": connections,
            }
            constants = {"row": REQUEST, "piece": self._piece}
            if isinstance(bodies, ProduceColumns):
                self._batches.append(produce_batch(columns, bodies, constants, READ))
            elif isinstance(relevant, FetchLines | compiled_parser.ScannedFetches):
                self._tally.count_fetches(bodies, times["remote_us"], int(np.sum(relevant.has_rack())))
                columns["session"] = session_keys(bodies.limits[:, 5], *relevant.sessions(), connections)
                self._batches.append(fetch_batch(columns, bodies, constants, READ))
        return np.append(read, places[found.numbers[skipped]])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches."""
        yield from self._batches
        constants = {"row": REQUEST, "piece": self._piece}
        if self._fetches:
            yield _batch_of(self._fetches, constants)
        if self._requests:
            yield request_batch(self._requests, constants, READ)
        if self._bad:
            yield batch_of_rows(self._bad, READ)


def _batch_of(requests: Sequence[Request], constants: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a READ batch of decoded fetches."""
    fetches = [request.fetch for request in requests if request.fetch is not None]
    columns: dict[str, Any] = {name: [getattr(request, name) for request in requests] for name in _OF_REQUESTS}
    columns["file"], columns["line"] = zip(*(request.place for request in requests), strict=True)
    connections = columns["connection"]
    columns["session"] = [session_key(*fetch, name) for fetch, name in zip(fetches, connections, strict=True)]
    return fetch_batch(columns, FetchColumns.of(fetches), constants, READ)


def in_time(row: AnyRow, since_us: int, text: str, tally: Tally) -> AnyRow:
    """Return the row or, if its request was handled before `since_us`, a bad line with `text` instead.

    A replaced row is counted in `tally`.
    """
    if not isinstance(row, RequestRow | Request) or row.start_us >= since_us:
        return row
    tally.counts["late_lines"] += 1
    place = row.place if isinstance(row, Request) else Place(row.file, row.line)
    return _bad(BadLine(place, "late", LATE, text))


def _row(line: bytes, place: Place, zone: tzinfo, by_path: int | None, tally: Tally) -> AnyRow:
    """Return the row of a line that `Rows.add_lines` has not read; None if it is only counted in `tally`.

    `by_path` is the broker id in the file's path, which applies to lines without a broker id; None if it has none.
    """
    texts = parse_line(line, place, zone)
    if texts is not None and (row := _fast_row(texts, by_path, tally)) is not None:
        return row or None
    return _complete_row(line.decode("utf-8", errors="replace"), place, zone, by_path, tally)


def _fast_row(texts: UnparsedRequest, by_path: int | None, tally: Tally) -> RequestRow | tuple[()] | None:
    """Return the same row as `_complete_row`, but decode only the JSON that is needed.

    Returns an empty tuple if the request is only counted in `tally`. Returns None, and counts nothing, if the request
    needs `_complete_row`. `by_path` is the broker id in the file's path, if any.
    """
    request, body, answer = texts
    named = request.broker != NO_BROKER
    if not named and by_path is None:
        return None
    session = None
    if request.api == "FETCH":
        return None
    shows_version = request.api in VERSION_APIS and tally.needs_version(request.api, request.broker)
    try:
        if request.api == HEARTBEAT or shows_version:
            # Its response matters.
            request.body, request.answer = from_json(body), from_json(answer or "null")
        elif request.api == LIST_OFFSETS:
            request.body = from_json(body)
        elif request.api in SHARE_APIS:
            session = share_session_key(from_json(body))
        relevant = is_relevant(request)
    except MALFORMED:
        return None
    tally.counts["requests"] += 1
    if not named and by_path is not None:
        tally.counts["no_broker"] += 1
        request.broker = by_path
    if shows_version and request.answer:
        with suppress(*MALFORMED):
            tally.count_version(request.broker, request.api, request.answer)
    if not relevant:
        if request.api in LEFT_OUT_HEARTBEATS:
            request.body = from_json(body)
        tally.count_skipped(request)
        return ()
    tally.count_request(request)
    return row_of_texts(request, session, body, answer)


def _complete_row(text: str, place: Place, zone: tzinfo, by_path: int | None, tally: Tally) -> AnyRow:
    counts = tally.counts
    read = read_line(text, place, zone)
    if read is None:
        counts["other_lines"] += 1
        return None
    if isinstance(read, BadLine):
        counts["bad_lines"] += 1
        if read.rule == TEXT_FORMAT:
            counts["text_lines"] += 1
        return _bad(read)
    counts["requests"] += 1
    if read.broker == NO_BROKER:
        counts["no_broker"] += 1
        if by_path is None:
            counts["bad_lines"] += 1
            reason = "no broker: neither the thread of the line nor the path of the file has the broker's id"
            return _bad(BadLine(place, "no broker", reason, text))
        read.broker = by_path
    return row_of(read, tally)


def row_of(request: Request, tally: Tally) -> AnyRow:
    """Return the row of a request or of a bad line, or a decoded fetch; None if it is only counted in `tally`."""
    if request.api in VERSION_APIS and request.answer:
        # Responses of brokers with a known version are not decoded, so a malformed one must not be rejected either.
        with suppress(*MALFORMED):
            tally.count_version(request.broker, request.api, request.answer)
    try:
        if not is_relevant(request):
            tally.count_skipped(request)
            return None
        if request.api == "FETCH":
            fetch = request.fetch = decode_fetch_request(request.body), decode_fetch_response(request.answer)
            remote_us = np.array([request.remote_us])
            tally.count_fetches(FetchColumns.of([fetch]), remote_us, fetch[0].has_rack)
            return request
        session = share_session_key(request.body) if request.api in SHARE_APIS else None
    except MALFORMED as error:
        tally.counts["bad_lines"] += 1
        return _bad(malformed_line(request, error))
    tally.count_request(request)
    return request_row(request, session)


def _cut(line: bytes, place: Place, rejection: Rejection, tally: Tally) -> Row:
    """Return the row of `rejected_events` for a line that was cut because it is too long; counts it in `tally`."""
    tally.counts["bad_lines"] += 1
    return _bad(BadLine(place, rejection.rule, rejection.reason, line.decode("utf-8", errors="replace")))


def _bad(bad: BadLine) -> dict[str, Any]:
    file, line = bad.place
    return {"row": BAD, "file": file, "line": line, "rule": bad.rule, "reason": bad.reason, "raw": bad.raw}


def is_relevant(request: Request) -> bool:
    """Return whether the import needs the request: it may wait in a purgatory, or it carries cluster facts."""
    if request.api == HEARTBEAT:
        return permits_shutdown(request)
    if request.api in CLUSTER_APIS:
        return True
    if request.api == LIST_OFFSETS and not looks_up(request.body):
        return False
    is_converted = request.api == "FETCH" or request.api in SHARE_APIS or request.api in CONVERTED_APIS
    return is_converted and not is_controller_request(request)
