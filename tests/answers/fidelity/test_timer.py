"""The phase of a broker's timer, from what expired at it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from purgatory_udf.answers.fidelity.timer_delays import FEWEST, PARTS, phase_of, phases, started_within

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PHASE = 0.3


def _late(start: float, phase: float, asleep: float) -> float:
    """By the timer an operation ends that much before its deadline; the reaper wakes and answers later."""
    return asleep + 0.1 - (start + phase) % 1


@pytest.mark.parametrize("phase", [0.0, 0.08, 0.3, 0.5, 0.72, 0.97])
def test_a_sawtooth_over_the_millisecond_tells_where_the_clocks_own_begins(phase: float) -> None:
    estimate = phase_of([_late((part + 0.5) / PARTS, phase, asleep=0.5) for part in range(PARTS)])
    assert estimate is not None
    assert (estimate - phase + 0.5) % 1 - 0.5 == pytest.approx(0, abs=0.5 / PARTS)


def test_lateness_that_does_not_follow_the_start_tells_no_phase() -> None:
    chance = random.Random(7)
    assert phase_of([0.4 + chance.uniform(-0.2, 0.2) for _ in range(PARTS)]) is None
    assert phase_of([0.4] * PARTS) is None


def _expired(spark: SparkSession) -> DataFrame:
    """Broker 1 writes microseconds; broker 2 whole milliseconds; of broker 3 too little expired; broker 4 has another
    timer than Kafka's."""
    chance, rows = random.Random(11), []
    for broker, operations in ((1, 2_000), (2, 2_000), (3, FEWEST - 1), (4, 2_000)):
        for _ in range(operations):
            start = chance.randrange(1_000_000_000)
            late = chance.random() if broker == 4 else _late(start / 1000, PHASE, asleep=chance.random())
            written = start + 500_200 + round(late * 1000)
            rows.append((broker, start, written // 1000 * 1000 if broker == 2 else written, late))
    frame = spark.createDataFrame(rows, "broker INT, start BIGINT, written BIGINT, difference_ms DOUBLE")
    return frame.withColumns(
        {"started_at": sf.timestamp_micros("start"), "written_at": sf.timestamp_micros("written")}
    ).cache()


def test_the_phase_is_told_by_microseconds_and_enough_operations_and_takes_the_sawtooth_off(
    spark: SparkSession,
) -> None:
    expired = _expired(spark)
    estimates = phases(expired)
    assert list(estimates) == [1]
    assert estimates[1] == pytest.approx(PHASE, abs=0.04)
    spread = sf.std(sf.col("difference_ms") + started_within(estimates)).alias("spread")
    spreads = {row.broker: row.spread for row in expired.groupBy("broker").agg(spread).collect()}
    expired.unpersist()
    # What stays of broker 1 is the reaper's millisecond (0.29), but for those whose millisecond is taken for the next;
    # of two such spreads at once, 0.41 stays.
    assert spreads[1] < 0.36 < 0.38 < spreads[2]
    assert spreads[4] == pytest.approx(0.29, abs=0.02)
