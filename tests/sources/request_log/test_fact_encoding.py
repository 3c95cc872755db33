"""Serialized facts, which go from task to task and from step to step, and facts of a partition as columns."""

from __future__ import annotations

import tracemalloc
from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from purgatory_udf.sources.request_log.append_offsets import places_right
from purgatory_udf.sources.request_log.fact_columns import FactColumns, attempt_rows
from purgatory_udf.sources.request_log.fact_kinds import (
    Append,
    AttemptRun,
    Fact,
    FactBlock,
    FetchAttempt,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    PartitionError,
    ReaderPosition,
    RecordDeletion,
    fields_of,
)
from purgatory_udf.sources.request_log.importing.import_rows import facts_in, packed_facts
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from tests.sources.request_log.translate import single_facts

FACTS: list[Fact] = [
    Append(1, 2, 3, 4, base=5, transaction="x", client=None),
    ReaderPosition(1, 2, 3, 4, -1, 6),
    HighWatermarkReading(1, 2, 3),
    FetchAttempt(1, 2, 3, True),
    FollowerDelivery(1, 2),
    PartitionError(1, 2),
    RecordDeletion(1, -1),
    FollowerCopy(1, 2, 3, 4, 5),
    AttemptRun(1, 2, True, array("q", (3, 4)).tobytes()),
]


def test_facts_survive_round_trip() -> None:
    assert facts_in(packed_facts(FACTS)) == FACTS


def test_fact_tags_are_stable() -> None:
    kept: list[list[Any]] = msgspec.msgpack.decode(packed_facts(FACTS))
    assert [number for number, *_ in kept] == list(range(9))
    assert kept[2] == [2, 1, 2, 3] and kept[8] == [8, 1, 2, True, array("q", (3, 4)).tobytes()]


@pytest.mark.parametrize("name", [7, ["x"], 1.5])
def test_non_string_transactional_id_survives(name: Any) -> None:
    facts = [*FACTS, Append(1, 2, 3, 4, transaction=name)]
    assert facts_in(packed_facts(facts)) == facts


@pytest.mark.parametrize("kind", [ReaderPosition, HighWatermarkReading, FollowerDelivery])
@pytest.mark.parametrize("length", [1, 7, 3000])
def test_blocks_of_facts_equal_single_facts(kind: type[Any], length: int) -> None:
    """Blocks and single facts may alternate; equal times keep the order."""
    rows = np.random.default_rng(length).integers(0, 5, (len(msgspec.structs.fields(kind)), 4 * length + 2))
    rows[-1] = np.arange(rows.shape[1]) << 33
    singly = [kind(*column) for column in rows.T.tolist()]
    first, second, third = ((start, start + length) for start in (1, 1 + length, 2 + 2 * length))
    mixed = [singly[0], *(FactBlock.of(kind, rows[:, begin:end]) for begin, end in (first, second))]
    mixed += [singly[1 + 2 * length], FactBlock.of(kind, rows[:, third[0] : third[1]]), *singly[third[1] :]]
    assert list(single_facts(facts_in(packed_facts(mixed)))) == singly
    collected = [PartitionFacts.of(0, ("t", 0), facts) for facts in (mixed, singly)]
    of_blocks, of_single = ([*each.positions, *each.high_watermarks, *each.deliveries] for each in collected)
    assert of_blocks == of_single and len(of_blocks) == len(singly)


@pytest.mark.parametrize("length", [1, 7, 3000])
def test_blocks_of_appends_equal_single_appends(length: int) -> None:
    singly = [Append(at, at + 1, at + 2, at + 3, 5, 6, 7, 8, 9, 10, 1, at, 3) for at in range(2 * length)]
    transactional = Append(2 * length, 0, 0, 0, transaction="x", aborts=True, client="c")
    integers = [name for name, is_integer in fields_of(Append).items() if is_integer]
    rows = np.array([[getattr(append, name) for append in singly] for name in integers])
    blocks = [FactBlock.of(Append, rows[:, :length]), FactBlock.of(Append, rows[:, length:])]
    assert [append for block in blocks for append in block.appends()] == singly
    mixed = facts_in(packed_facts([blocks[0], blocks[1], transactional]))
    assert list(PartitionFacts.of(0, ("t", 0), mixed).appends) == [*singly, transactional]
    assert list(PartitionFacts.of(0, ("t", 0), [transactional, *blocks]).appends) == [*singly, transactional]


def test_block_of_runs_equals_single_runs() -> None:
    runs = [
        AttemptRun(2, 7, False, array("q", (10, 20, 30)).tobytes()),
        AttemptRun(-1, 9, True, array("q", (20,)).tobytes()),
    ]
    block = FactBlock.of_runs(np.array([[2, -1], [7, 9], [0, 1], [3, 1]]), np.array([10, 20, 30, 20]))
    assert msgspec.msgpack.decode(packed_facts([block])) == [
        [13, 8, array("q", (2, 2, -1, 7, 9, 0, 1, 3, 1, 10, 20, 30, 20)).tobytes()]
    ]
    attempts = [
        FetchAttempt(10, 2, 7, True),
        FetchAttempt(20, 2, 7, True),
        FetchAttempt(30, 2, 7),
        FetchAttempt(20, -1, 9, True),
    ]
    assert list(single_facts(facts_in(packed_facts([block])))) == attempts
    assert attempt_rows([*runs, block, attempts[0]]).T.tolist() == [
        [fact.at_us, fact.replica, fact.offset, fact.empty] for fact in [*attempts, *attempts, attempts[0]]
    ]


def test_facts_over_64_bits_are_dropped() -> None:
    assert facts_in(
        packed_facts(
            [RecordDeletion(1, 2**70), RecordDeletion(1, 2**63), RecordDeletion(1, -(2**63)), RecordDeletion(1, 2)]
        )
    ) == [RecordDeletion(1, 2)]


def _appends(count: int) -> list[Append]:
    """Return appends as of a busy partition, from the last to the first, every thousandth of a transaction."""
    start_us = 1_700_000_000_000_000
    return [
        Append(
            at, at, at + 400, at + 400, at + 900, -1, number, -1, 1000, 0, 0, number, 0, None if number % 1000 else "x"
        )
        for number in reversed(range(count))
        for at in [start_us + 1000 * number]
    ]


def test_appends_need_few_bytes() -> None:
    """Objects would take 450 bytes each, with their numbers."""
    count = 50_000
    given = iter(_appends(count))
    tracemalloc.start()
    try:
        facts = PartitionFacts.of(1, ("t", 0), given)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(facts.appends) == _appends(count)[::-1]
    assert facts.given is not None and facts.given[:2].tolist() == [count - 1, count - 2]
    assert size / count < 80


@pytest.mark.parametrize("value", [2**62, -(2**63), 1, -1])
def test_columns_hold_any_number_of_64_bits(value: int) -> None:
    appends = [Append(value, 2, 3, 4), Append(1, value, 3, 4, bytes=value), Append(1, 2, 3, value)] * 3000
    assert list(FactColumns.of(Append, appends)) == appends


def test_columns_hold_any_transactional_id() -> None:
    appends = [Append(1, 2, 3, 4, transaction=name) for name in (["x"], 1, True, 1.0, "x", "", None)]  # type: ignore[arg-type]
    columns = FactColumns.of(Append, appends)
    columns.extend(FactColumns.of(Append, appends[::-1]))
    assert [repr(append) for append in columns] == [repr(append) for append in [*appends, *appends[::-1]]]


def test_places_in_disorder_are_those_of_bisect() -> None:
    """In a damaged log, offsets of later appends may be lower."""
    assert places_right(np.array([5, 1, 4]), np.array([0, 1, 4, 6])).tolist() == [0, 2, 3, 3]
    assert places_right(np.array([1, 4, 5]), np.array([0, 1, 4, 6])).tolist() == [0, 1, 2, 3]
