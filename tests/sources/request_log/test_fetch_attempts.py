"""Fetch attempts in runs and as columns, and fetches that are converted in several calls."""

from __future__ import annotations

from array import array
from collections import Counter
from datetime import UTC
from itertools import islice
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from purgatory_udf.sources.request_log import fetch_conversion
from purgatory_udf.sources.request_log.assumptions import Report
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_columns import AttemptColumns
from purgatory_udf.sources.request_log.fact_kinds import (
    AttemptRun,
    Fact,
    FactBlock,
    FactsOfPartitions,
    FetchAttempt,
    OpenRun,
)
from purgatory_udf.sources.request_log.fetch_conversion import FetchConverter, SessionName
from purgatory_udf.sources.request_log.importing.carried_state import LOOK_BACK_US, facts_to_carry
from purgatory_udf.sources.request_log.importing.import_rows import fetches_in
from purgatory_udf.sources.request_log.importing.import_tasks import add_facts
from purgatory_udf.sources.request_log.importing.log_reader import Rows, Tally
from purgatory_udf.sources.request_log.kafka_protocol import FetchColumns
from tests.sources.request_log.translate import single_facts
from tests.support import recorded


def run(offset: int, *times: int, replica: int = 2, empty: bool = False) -> AttemptRun:
    return AttemptRun(replica, offset, empty, array("q", times).tobytes())


def each(attempts: AttemptColumns) -> list[tuple[int, int, int, bool]]:
    columns = (attempts.at_us, attempts.replica, attempts.offset, attempts.empty)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_attempts_are_in_time_order() -> None:
    """All attempts of a run but the last are empty."""
    attempts = AttemptColumns.of([run(7, 10, 20, 30), FetchAttempt(25, 3, 5), run(9, 25, replica=1, empty=True)])
    assert each(attempts) == [
        (10, 2, 7, True),
        (20, 2, 7, True),
        (25, 1, 9, True),
        (25, 3, 5, False),
        (30, 2, 7, False),
    ]
    assert [column.tolist() for column in attempts.empty_attempts()] == [[10, 20, 25], [7, 7, 9]]
    assert [attempts.last_us(2, until) for until in (9, 10, 29, 99)] == [0, 10, 20, 30]
    assert (len(AttemptColumns.of([])), each(AttemptColumns.of([]))) == (0, [])


@pytest.mark.parametrize(
    ("since", "kept"),
    [
        (10, [(5, 2, 6, False), (10, 2, 7, True), (20, 2, 7, True), (30, 2, 7, False)]),
        (11, [(10, 2, 7, True), (20, 2, 7, True), (30, 2, 7, False)]),
        (25, [(20, 2, 7, True), (30, 2, 7, False)]),
        (31, [(30, 2, 7, False)]),
    ],
)
def test_latest_earlier_attempt_is_carried(since: int, kept: list[tuple[int, int, int, bool]]) -> None:
    attempts: list[Fact] = [run(7, 10, 20, 30), FetchAttempt(5, 2, 6), FetchAttempt(40, 3, 7)]
    assert each(AttemptColumns.of(attempts_to_carry(attempts, since))) == [*kept, (40, 3, 7, False)]


def test_attempt_times_need_not_rise() -> None:
    """The last attempt of a run is the only one with records, even if it is not the latest."""
    assert each(AttemptColumns.of(attempts_to_carry([run(7, 30, 10)], 20))) == [(10, 2, 7, False), (30, 2, 7, True)]


def attempts_to_carry(attempts: list[Fact], since_us: int) -> list[FactBlock]:
    blocks = facts_to_carry([attempts], since_us + LOOK_BACK_US)[0]
    assert [type(block) for block in blocks] == [FactBlock]
    return cast(list[FactBlock], blocks)


def test_open_run_keeps_its_last_attempt() -> None:
    open_run = OpenRun(10, 2, 7, False)
    assert open_run.take_all_but_last() is None
    open_run.times.extend((20, 30))
    assert open_run.take_all_but_last() == run(7, 10, 20, empty=True)
    assert (open_run.last, open_run.to_run()) == (FetchAttempt(30, 2, 7), run(7, 30))


def test_calls_may_divide_sessions_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations and facts do not depend on how many fetches are converted at once."""
    monkeypatch.setattr(fetch_conversion, "MAX_ATTEMPTS", 7)
    lines = islice(recorded.lines(recorded.data_file("traces", "W3-groups-k39", "request-1.log")), 1_000)
    rows, texts = Rows(Tally()), [line.rstrip("\n").encode() for line in lines]
    rows.add_lines(texts, np.zeros(len(texts)), np.arange(len(texts)), UTC, None)
    fetches = pa.Table.from_batches([next(rows.batches())])
    order = [(name, "ascending") for name in ("broker", "session", "start_us", "line")]
    converted = [_converted(fetches.sort_by(order), size) for size in (len(fetches), 90, 11)]
    runs = [fact for facts in converted[0][1].values() for fact in facts if isinstance(fact, AttemptRun)]
    assert max(len(run.times) for run in runs) == 7 * array("q").itemsize
    assert len(converted[0][0]) > 450 and converted[1:] == converted[:1] * 2


def _converted(fetches: pa.Table, size: int) -> tuple[list[str], FactsOfPartitions, Counter[str]]:
    converter, report, events = FetchConverter(Context()), Report(), list[str]()
    facts: FactsOfPartitions = {}
    names: dict[SessionName, None] = {}
    for batch in fetches.combine_chunks().to_batches(max_chunksize=size):
        columns = fetches_in(batch)
        result = converter.convert(columns, report)
        events += map(repr, zip(*(result.operations[name].to_pylist() for name in ("fetch", "recorded")), strict=True))
        add_facts(facts, result.facts)
        names |= dict.fromkeys(columns.sessions)
    for name in names:
        add_facts(facts, converter.finish(name))
    return (
        sorted(events),
        {key: sorted(single_facts(its_facts), key=repr) for key, its_facts in facts.items()},
        report.counts,
    )


@pytest.mark.parametrize("partition", [0, 2**60 - 1, -(2**60)])
def test_partitions_are_numbered_in_order_of_rows(partition: int) -> None:
    rows = np.array([(16, partition), (0, partition), (16, partition), (3, 1), (0, partition)], np.int64)
    topics = FetchColumns([f"t{number}" for number in range(17)], *[np.empty((0, 0), np.int64)] * 7)
    numbers = FetchConverter(Context())._numbers_of(topics, rows)
    assert numbers.tolist() == [0, 1, 0, 2, 1]
