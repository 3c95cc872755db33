"""Serialized facts, which go from task to task and from step to step."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from purgatory_udf.sources.request_log.importing.import_rows import copied, facts_in, packed_facts
from purgatory_udf.sources.request_log.partition_facts import (
    Append,
    AttemptRun,
    Fact,
    FetchAttempt,
    FollowerCopy,
    FollowerDelivery,
    HighWatermarkReading,
    PartitionError,
    ReaderPosition,
    RecordDeletion,
)

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
    assert list(map(copied, FACTS)) == FACTS


def test_fact_tags_are_stable() -> None:
    kept: list[list[Any]] = msgspec.msgpack.decode(packed_facts(FACTS))
    assert [number for number, *_ in kept] == list(range(9))
    assert kept[2] == [2, 1, 2, 3] and kept[8] == [8, 1, 2, True, array("q", (3, 4)).tobytes()]


@pytest.mark.parametrize("name", [7, ["x"], 1.5])
def test_non_string_transactional_id_survives(name: Any) -> None:
    facts = [*FACTS, Append(1, 2, 3, 4, transaction=name)]
    assert facts_in(packed_facts(facts)) == facts


def test_facts_over_64_bits_are_dropped() -> None:
    assert facts_in(
        packed_facts(
            [RecordDeletion(1, 2**70), RecordDeletion(1, 2**63), RecordDeletion(1, -(2**63)), RecordDeletion(1, 2)]
        )
    ) == [RecordDeletion(1, 2)]
