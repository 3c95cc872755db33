"""Facts on their way between tasks, and from step to step, are what they were."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from purgatory_udf.sources.request_log.importing.import_rows import copied, facts_in, packed_facts
from purgatory_udf.sources.request_log.requests.fetch_sessions import AttemptRun, FetchAttempt
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Append,
    Fact,
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


def test_facts_come_back_as_they_were() -> None:
    assert facts_in(packed_facts(FACTS)) == FACTS
    assert list(map(copied, FACTS)) == FACTS


def test_their_numbers_stay_for_what_an_earlier_step_has_kept() -> None:
    kept: list[list[Any]] = msgspec.msgpack.decode(packed_facts(FACTS))
    assert [number for number, *_ in kept] == list(range(9))
    assert kept[2] == [2, 1, 2, 3] and kept[8] == [8, 1, 2, True, array("q", (3, 4)).tobytes()]


@pytest.mark.parametrize("name", [7, ["x"], 1.5])
def test_a_transaction_that_is_no_text_stays_what_it_is(name: Any) -> None:
    facts = [*FACTS, Append(1, 2, 3, 4, transaction=name)]
    assert facts_in(packed_facts(facts)) == facts


def test_a_fact_that_is_longer_than_64_bits_counts_for_nothing() -> None:
    assert facts_in(
        packed_facts(
            [RecordDeletion(1, 2**70), RecordDeletion(1, 2**63), RecordDeletion(1, -(2**63)), RecordDeletion(1, 2)]
        )
    ) == [RecordDeletion(1, 2)]
