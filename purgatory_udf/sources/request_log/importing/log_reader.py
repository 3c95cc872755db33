"""Reader of log files in pieces: a row for each relevant request, each bad line, and the end of each piece.

Lines are counted within their piece, because pieces are read in parallel. The last row of a piece has its number of
lines, from which the lines before each piece follow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

import pyarrow as pa

from purgatory_udf.contract import Rejection
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.cluster_context import NO_REMOTE_WAITS, RemoteWaits
from purgatory_udf.sources.request_log.cluster_facts import CLUSTER_APIS
from purgatory_udf.sources.request_log.cluster_metadata import HEARTBEAT, permits_shutdown
from purgatory_udf.sources.request_log.complete_parser import TEXT_FORMAT, read_line
from purgatory_udf.sources.request_log.fast_parser import UnparsedRequest, parse_fetch, parse_line
from purgatory_udf.sources.request_log.fetch_conversion import READ_COMMITTED
from purgatory_udf.sources.request_log.fetch_sessions import session_key
from purgatory_udf.sources.request_log.group_conversion import CONSUMER_HEARTBEAT, LEFT_OUT_HEARTBEATS
from purgatory_udf.sources.request_log.importing.import_rows import (
    REQUESTS,
    RequestRow,
    from_json,
    request_batch,
    request_row,
    row_of_texts,
)
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchRequestBody,
    FetchResponseBody,
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
    looked_up_topics,
    looks_up,
    skip_cause,
)
from purgatory_udf.sources.request_log.share_conversion import SHARE_APIS, share_session_key
from purgatory_udf.sources.trace_files.text_lines import Piece, lines_of

Row = dict[str, Any]

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

    def count_fetch(self, request: Request, fetch: FetchRequestBody, response: FetchResponseBody) -> None:
        if fetch.has_rack:
            self.counts["racked"] += 1
        if request.remote_us and fetch.replica_id < 0 and not response.bytes and fetch.isolation != READ_COMMITTED:
            self._note_remote_wait(fetch, response)
        if fetch.replica_id >= 0:
            self.follower_fetches[fetch.max_wait_ms, fetch.min_bytes] += 1
            for part in fetch.partitions:
                known = self.partitions.get(part.topic)
                if known is None or part.partition >= known:
                    self.partitions[part.topic] = max(0, part.partition + 1)

    def count_request(self, request: Request) -> None:
        """Count a request that becomes a row."""
        first, last = self.span_us or (request.arrival_us, request.answered_us)
        self.span_us = min(first, request.arrival_us), max(last, request.answered_us)
        if request.api == LIST_OFFSETS and request.remote_us and (topics := looked_up_topics(request.body)):
            self.remote_waits |= RemoteWaits(lookups=frozenset({topics}))
        if request.api == "HEARTBEAT":
            own_thread, total = self.heartbeats.get(request.broker, (0, 0))
            self.heartbeats[request.broker] = own_thread + (request.remote_us == 0), total + 1

    def _note_remote_wait(self, fetch: FetchRequestBody, response: FetchResponseBody) -> None:
        """Record the topics for whose remote storage a consumer's fetch waited; it returned nothing after a wait.

        A fetch in the purgatory Fetch reads the log again when it ends, and returns the records up to the high
        watermark. If a fetch returns no records although there are some, it waited for remote storage instead.
        """
        offsets = {(partition.topic, partition.partition): partition.offset for partition in fetch.partitions}
        for data in response.partitions:
            if not data.error and data.high_watermark > offsets.get((data.topic, data.partition), data.high_watermark):
                self.remote_waits |= RemoteWaits(frozenset({data.topic}))

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
        return pa.RecordBatch.from_pylist([row], schema=READ)

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


def read_piece(piece: Piece, zone: tzinfo) -> Iterator[pa.RecordBatch]:
    """Yield the READ rows of a piece of a log file; `zone` is the time zone of timestamps without one."""
    tally = Tally()
    by_path = broker_of(piece.source.name)
    line = 0
    for chunk in lines_of(piece):
        rows = Rows(piece.index)
        for number, raw in enumerate(chunk.items):
            line += 1
            if number in chunk.cut:
                row: RequestRow | Row | None = _cut(raw, Place(piece.file, line), chunk.cut[number], tally)
            elif chunk.broken and number == len(chunk.items) - 1:
                row = _cut(raw, Place(piece.file, line), chunk.broken, tally)
            else:
                row = _row(raw, Place(piece.file, line), zone, by_path, tally)
            rows.add(row)
        yield from rows.batches()
    tally.counts["lines"] = line
    yield tally.end(file=piece.file, piece=piece.index, line=line)


def read_messages(zone: tzinfo, since_us: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the step that reads messages (partition, offset, value), each of which is a line.

    `zone` is the time zone of timestamps without one.

    A request that a broker handled before `since_us` is rejected as late.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = Tally()
        for batch in batches:
            rows = Rows()
            columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
            for file, line, text in zip(*columns, strict=True):
                tally.counts["lines"] += 1
                row = _row(text.encode(), Place(file, line), zone, None, tally)
                rows.add(in_time(row, since_us, text, tally))
            yield from rows.batches()
        yield tally.end()

    return work


class Rows:
    """Collects the rows of requests and bad lines of a chunk, to convert them to READ batches."""

    def __init__(self, piece: int | None = None) -> None:
        self._piece = piece
        self._requests: list[RequestRow] = []
        self._bad: list[Row] = []

    def add(self, row: RequestRow | Row | None) -> None:
        if isinstance(row, RequestRow):
            self._requests.append(row)
        elif row is not None:
            self._bad.append({**row, "piece": self._piece})

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield request_batch(self._requests, {"row": REQUEST, "piece": self._piece}, READ)
        if self._bad:
            yield pa.RecordBatch.from_pylist(self._bad, schema=READ)


def in_time(row: RequestRow | Row | None, since_us: int, text: str, tally: Tally) -> RequestRow | Row | None:
    """Return the row or, if its request was handled before `since_us`, a bad line with `text` instead.

    A replaced row is counted in `tally`.
    """
    if not isinstance(row, RequestRow) or row.start_us >= since_us:
        return row
    tally.counts["late_lines"] += 1
    return _bad(BadLine(Place(row.file, row.line), "late", LATE, text))


def _row(line: bytes, place: Place, zone: tzinfo, by_path: int | None, tally: Tally) -> RequestRow | Row | None:
    """Return the row of a line, or None if the line is only counted in `tally`.

    `by_path` is the broker id in the file's path, which applies to lines without a broker id; None if it has none.
    """
    fetch = parse_fetch(line, place, zone)
    texts = parse_line(line, place, zone) if fetch is None else UnparsedRequest(fetch, "", None)
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
    if request.api == HEARTBEAT or (request.api in VERSION_APIS and tally.needs_version(request.api, request.broker)):
        # Its response matters, and must be decoded.
        return None
    session = session_key(*request.fetch, request.connection) if request.fetch is not None else None
    if request.api == "FETCH" and request.fetch is None:
        return None
    try:
        if request.api == LIST_OFFSETS:
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
    if not relevant:
        if request.api in LEFT_OUT_HEARTBEATS:
            request.body = from_json(body)
        tally.count_skipped(request)
        return ()
    if request.fetch is not None:
        tally.count_fetch(request, *request.fetch)
    tally.count_request(request)
    if request.fetch is not None:
        return request_row(request, session)
    return row_of_texts(request, session, body, answer)


def _complete_row(text: str, place: Place, zone: tzinfo, by_path: int | None, tally: Tally) -> RequestRow | Row | None:
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


def row_of(request: Request, tally: Tally) -> RequestRow | Row | None:
    """Return the row of a request or of a bad line, or None if the request is only counted in `tally`."""
    try:
        if request.api in VERSION_APIS and request.answer:
            tally.count_version(request.broker, request.api, request.answer)
        if not is_relevant(request):
            tally.count_skipped(request)
            return None
        session = _session(request, tally)
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


def _session(request: Request, tally: Tally) -> str | None:
    if request.api in SHARE_APIS:
        return share_session_key(request.body)
    if request.api != "FETCH":
        return None
    request.fetch = decode_fetch_request(request.body), decode_fetch_response(request.answer)
    tally.count_fetch(request, *request.fetch)
    return session_key(*request.fetch, request.connection)
