"""Incremental fetch sessions: the partitions of a fetch with a line that lists only changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from random import Random

import numpy as np
import pytest

from purgatory_udf.rules.engine.jit.ordered_maps import CLEAR, REPLACE, UPDATE, MapChanges, apply
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log.fetch_sessions import SessionKeys, partitions_of_sessions, session_key
from purgatory_udf.sources.request_log.kafka_protocol import bounds_of, decode_fetch_request, decode_fetch_response
from tests.sources.request_log.log_lines import fetch_line, parse

# Kind; keys that a change sets, removes and moves. The values of a map after each change, and in the end.
_Change = tuple[int, list[int], list[int], list[int]]
_Lists = tuple[list[list[int]], list[int]]


@pytest.fixture(params=["compiled", "in Python"], autouse=True)
def _code(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        compiled_parser.load()
        yield
        compiled_parser.unload()
    else:
        compiled_parser.unload()
        yield


def _resolve(*lines: str) -> list[tuple[dict[int, int], bool]]:
    """Return {partition: offset} in the broker's order, and whether it is complete, for each fetch of a session."""
    decoded = [(decode_fetch_request(line.body), decode_fetch_response(line.answer)) for line in parse(list(lines))]
    listed = [partition for fetch, _ in decoded for partition in fetch.partitions]
    with_records = [[data.partition for data in answer.partitions if data.bytes] for _, answer in decoded]
    found = partitions_of_sessions(
        np.array([0, len(lines)]),
        np.array([fetch.session_epoch for fetch, _ in decoded]),
        np.array([answer.error != 0 for _, answer in decoded]),
        np.array([False]),
        SessionKeys(
            np.array([each.partition for each in listed], np.int64),
            np.array([0, 0]),
            bounds_of([len(fetch.partitions) for fetch, _ in decoded]),
            np.array([number for fetch, _ in decoded for _, number in fetch.forgotten], np.int64),
            bounds_of([len(fetch.forgotten) for fetch, _ in decoded]),
            np.array([*chain.from_iterable(with_records)], np.int64),
            bounds_of(list(map(len, with_records))),
        ),
        5,
    )
    places = [found.places[first:last] for first, last in pairwise(found.bounds)]
    partitions = [{listed[place].partition: listed[place].offset for place in of_fetch} for of_fetch in places]
    return list(zip(partitions, found.complete.tolist(), strict=True))


def test_session_keeps_partitions_until_forgotten() -> None:
    assert _resolve(
        fetch_line(1, {0: 5, 1: 7}, epoch=0, granted=9),
        fetch_line(2, {1: 8}, session=9, epoch=1),
        fetch_line(3, {2: 0}, session=9, epoch=2, forgotten=[0]),
        fetch_line(4, {}, session=9, epoch=3),
    ) == [({0: 5, 1: 7}, True), ({0: 5, 1: 8}, True), ({1: 8, 2: 0}, True), ({1: 8, 2: 0}, True)]


def test_partition_with_records_moves_to_end() -> None:
    resolved = _resolve(
        fetch_line(1, {0: 5, 1: 7, 2: 0}, {0: 80}, epoch=0, granted=9),
        fetch_line(2, {0: 6}, {0: 80}, session=9, epoch=1),
        fetch_line(3, {0: 7}, session=9, epoch=2),
    )
    assert [list(partitions) for partitions, _ in resolved] == [[0, 1, 2], [0, 1, 2], [1, 2, 0]]


def test_sessionless_fetch_is_complete() -> None:
    assert _resolve(fetch_line(1, {0: 5, 1: 7}), fetch_line(2, {1: 8})) == [({0: 5, 1: 7}, True), ({1: 8}, True)]


def test_session_from_before_log_is_incomplete() -> None:
    assert _resolve(
        fetch_line(1, {3: 1}, session=9, epoch=44),
        fetch_line(2, {4: 1}, session=9, epoch=45),
    ) == [({3: 1}, False), ({3: 1, 4: 1}, False)]


def test_session_error_closes_session() -> None:
    assert _resolve(
        fetch_line(1, {0: 5}, epoch=0, granted=9),
        fetch_line(2, {}, session=9, epoch=7, error=71),
        fetch_line(3, {1: 5}, session=9, epoch=8),
        fetch_line(4, {0: 5}, epoch=0, granted=10),
    ) == [({0: 5}, True), ({}, True), ({1: 5}, False), ({0: 5}, True)]


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


def _dictionary_values(changes: Sequence[_Change], kept: Sequence[int], first: int, places: Iterator[int]) -> _Lists:
    """Apply changes to a dictionary of a map with places from `first` on; return its values after each, and at the end.

    `places` are the places of the keys that changes set.
    """
    held, lists = dict(zip(kept, count(first), strict=False)), []
    for kind, added, removed, moved in changes:
        if kind == REPLACE:
            held = {}
        for key in added:
            held[key] = next(places)
        for key in removed if kind != REPLACE else ():
            held.pop(key, None)
        if kind == CLEAR:
            held = {}
        lists.append([*held.values()])
        for key in moved if kind == UPDATE else ():
            if key in held:
                held[key] = held.pop(key)
    return lists, [*held.values()]


@pytest.mark.parametrize("seed", range(30))
def test_maps_are_listed_as_dictionaries_are(seed: int) -> None:
    random = Random(seed)

    def keys() -> list[int]:
        return random.choices(range(5), k=random.randrange(5))

    def change() -> _Change:
        return random.choice([UPDATE, UPDATE, UPDATE, REPLACE, CLEAR]), keys(), keys(), keys()

    kept = [random.sample(range(5), random.randrange(4)) for _ in range(random.randrange(4))]
    changes = [[change() for _ in range(random.randrange(6))] for _ in kept]
    flat = [each for of_map in changes for each in of_map]
    columns = [[added for _, added, *_ in flat], [removed for *_, removed, _ in flat], [moved for *_, moved in flat]]
    earlier = sum(map(len, kept))
    lists_of_keys = [*kept, *columns[0]], *columns[1:]
    joined = [np.array([*chain.from_iterable(each)], np.int64) for each in lists_of_keys]
    bounds = [bounds_of(list(map(len, each))) for each in (kept, *columns)]
    given = MapChanges(
        bounds_of(list(map(len, changes))),
        np.array([kind for kind, *_ in flat], np.int64),
        *(joined[0], bounds[0], bounds[1] + earlier, joined[1], bounds[2], joined[2], bounds[3]),
    )
    found = apply(given, 5, compiled_parser.is_loaded())
    places = iter(range(earlier, len(given.keys)))
    expected = [
        _dictionary_values(of_map, of_kept, first, places)
        for of_map, of_kept, first in zip(changes, kept, bounds[0].tolist(), strict=False)
    ]
    lists = [found.values[first:last].tolist() for first, last in pairwise(found.bounds)]
    left = [found.left[first:last].tolist() for first, last in pairwise(found.left_bounds)]
    assert lists == [values for of_map, _ in expected for values in of_map]
    assert left == [values for _, values in expected]


def test_room_for_values_grows_with_their_number() -> None:
    """A session of many partitions that lists none has more values than there is room for at first."""
    partitions, fetches = 1 << 10, (1 << 10) + 1
    none = np.zeros(0, np.int64), np.zeros(fetches + 1, np.int64)
    given = MapChanges(
        np.array([0, fetches]),
        np.full(fetches, UPDATE),
        np.arange(partitions),
        np.array([0, partitions]),
        np.full(fetches + 1, partitions),
        *none,
        *none,
    )
    found = apply(given, partitions, compiled_parser.is_loaded())
    assert len(found.values) == partitions * fetches
    assert np.array_equal(found.values.reshape(fetches, -1)[-1], np.arange(partitions))
