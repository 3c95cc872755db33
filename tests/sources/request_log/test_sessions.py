"""Incremental fetch sessions: what a fetch is about when its line lists only what changed."""

from __future__ import annotations

from purgatory_udf.sources.request_log.lines.request_bodies import decode_fetch_request, decode_fetch_response
from purgatory_udf.sources.request_log.requests.fetch_sessions import FetchSession, session_key
from tests.sources.request_log.lines import fetched, requests


def _asked(session: FetchSession, line: str) -> tuple[dict[int, int], bool]:
    """{partition: offset} in the broker's order, and whether that is all."""
    (request,) = requests([line])
    fetch = session.resolve(decode_fetch_request(request.body), decode_fetch_response(request.answer))
    return {partition.partition: partition.offset for partition in fetch.partitions}, fetch.complete


def test_a_session_holds_what_was_listed_until_it_is_forgotten() -> None:
    session = FetchSession()
    assert _asked(session, fetched(1, {0: 5, 1: 7}, epoch=0, granted=9)) == ({0: 5, 1: 7}, True)
    assert _asked(session, fetched(2, {1: 8}, session=9, epoch=1)) == ({0: 5, 1: 8}, True)
    assert _asked(session, fetched(3, {2: 0}, session=9, epoch=2, forgotten=[0])) == ({1: 8, 2: 0}, True)
    assert _asked(session, fetched(4, {}, session=9, epoch=3)) == ({1: 8, 2: 0}, True)


def test_what_an_incremental_fetch_was_answered_with_records_moves_to_the_end() -> None:
    session = FetchSession()
    assert list(_asked(session, fetched(1, {0: 5, 1: 7, 2: 0}, {0: 80}, epoch=0, granted=9))[0]) == [0, 1, 2]
    assert list(_asked(session, fetched(2, {0: 6}, {0: 80}, session=9, epoch=1))[0]) == [0, 1, 2]
    assert list(_asked(session, fetched(3, {0: 7}, session=9, epoch=2))[0]) == [1, 2, 0]


def test_without_a_session_every_list_is_complete() -> None:
    session = FetchSession()
    assert _asked(session, fetched(1, {0: 5, 1: 7})) == ({0: 5, 1: 7}, True)
    assert _asked(session, fetched(2, {1: 8})) == ({1: 8}, True)


def test_a_session_that_began_before_the_log_is_known_in_part() -> None:
    session = FetchSession()
    assert _asked(session, fetched(1, {3: 1}, session=9, epoch=44)) == ({3: 1}, False)
    assert _asked(session, fetched(2, {4: 1}, session=9, epoch=45)) == ({3: 1, 4: 1}, False)


def test_a_session_error_ends_it() -> None:
    session = FetchSession()
    assert _asked(session, fetched(1, {0: 5}, epoch=0, granted=9)) == ({0: 5}, True)
    assert _asked(session, fetched(2, {}, session=9, epoch=7, error=71)) == ({}, True)
    assert _asked(session, fetched(3, {0: 5}, epoch=0, granted=10)) == ({0: 5}, True)


def test_fetches_go_together_by_session_and_by_connection_without_one() -> None:
    def key(line: str) -> str:
        (request,) = requests([line])
        return session_key(
            decode_fetch_request(request.body), decode_fetch_response(request.answer), request.connection
        )

    assert key(fetched(1, {0: 5}, epoch=0, granted=9)) == "9"
    assert key(fetched(2, {}, session=9, epoch=1)) == "9"
    assert key(fetched(3, {0: 5}, epoch=0, granted=0)) == "127.0.0.1:9092-c"
    assert key(fetched(4, {0: 5})) == "127.0.0.1:9092-c"
