"""Incremental fetch sessions: the partitions of a fetch with a line that lists only changes."""

from __future__ import annotations

from purgatory_udf.sources.request_log.fetch_sessions import FetchSession, session_key
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchRequestPartition,
    Key,
    decode_fetch_request,
    decode_fetch_response,
)
from tests.sources.request_log.log_lines import fetch_line, parse

Session = FetchSession[Key, FetchRequestPartition]


def _resolve(session: Session, line: str) -> tuple[dict[int, int], bool]:
    """Return {partition: offset} in the broker's order, and whether it is complete."""
    (request,) = parse([line])
    fetch, response = decode_fetch_request(request.body), decode_fetch_response(request.answer)
    listed = [((partition.topic, partition.partition), partition) for partition in fetch.partitions]
    with_records = [(data.topic, data.partition) for data in response.partitions if data.bytes]
    resolved: list[FetchRequestPartition] = []
    session.resolve(resolved, fetch.session_epoch, listed, fetch.forgotten, response.error, with_records)
    return {partition.partition: partition.offset for partition in resolved}, session.was_complete


def test_session_keeps_partitions_until_forgotten() -> None:
    session = Session()
    assert _resolve(session, fetch_line(1, {0: 5, 1: 7}, epoch=0, granted=9)) == ({0: 5, 1: 7}, True)
    assert _resolve(session, fetch_line(2, {1: 8}, session=9, epoch=1)) == ({0: 5, 1: 8}, True)
    assert _resolve(session, fetch_line(3, {2: 0}, session=9, epoch=2, forgotten=[0])) == ({1: 8, 2: 0}, True)
    assert _resolve(session, fetch_line(4, {}, session=9, epoch=3)) == ({1: 8, 2: 0}, True)


def test_partition_with_records_moves_to_end() -> None:
    session = Session()
    assert list(_resolve(session, fetch_line(1, {0: 5, 1: 7, 2: 0}, {0: 80}, epoch=0, granted=9))[0]) == [0, 1, 2]
    assert list(_resolve(session, fetch_line(2, {0: 6}, {0: 80}, session=9, epoch=1))[0]) == [0, 1, 2]
    assert list(_resolve(session, fetch_line(3, {0: 7}, session=9, epoch=2))[0]) == [1, 2, 0]


def test_sessionless_fetch_is_complete() -> None:
    session = Session()
    assert _resolve(session, fetch_line(1, {0: 5, 1: 7})) == ({0: 5, 1: 7}, True)
    assert _resolve(session, fetch_line(2, {1: 8})) == ({1: 8}, True)


def test_session_from_before_log_is_incomplete() -> None:
    session = Session()
    assert _resolve(session, fetch_line(1, {3: 1}, session=9, epoch=44)) == ({3: 1}, False)
    assert _resolve(session, fetch_line(2, {4: 1}, session=9, epoch=45)) == ({3: 1, 4: 1}, False)


def test_session_error_closes_session() -> None:
    session = Session()
    assert _resolve(session, fetch_line(1, {0: 5}, epoch=0, granted=9)) == ({0: 5}, True)
    assert _resolve(session, fetch_line(2, {}, session=9, epoch=7, error=71)) == ({}, True)
    assert _resolve(session, fetch_line(3, {0: 5}, epoch=0, granted=10)) == ({0: 5}, True)


def test_session_key_is_id_or_connection() -> None:
    def key(line: str) -> str:
        (request,) = parse([line])
        return session_key(
            decode_fetch_request(request.body), decode_fetch_response(request.answer), request.connection
        )

    assert key(fetch_line(1, {0: 5}, epoch=0, granted=9)) == "9"
    assert key(fetch_line(2, {}, session=9, epoch=1)) == "9"
    assert key(fetch_line(3, {0: 5}, epoch=0, granted=0)) == "127.0.0.1:9092-c"
    assert key(fetch_line(4, {0: 5})) == "127.0.0.1:9092-c"
