"""Simulations of small clusters: times and sizes of responses, compared with the reference."""

from __future__ import annotations

from itertools import pairwise

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.prediction.fit_check import effects
from purgatory_udf.prediction.model_broker import Measurements
from purgatory_udf.prediction.model_simulation import simulate
from purgatory_udf.prediction.simulation_plan import PartitionPlan
from purgatory_udf.rules.reference.reference_replay import replay
from tests.prediction.plans import plan, producer, reader, takes


def _answers(measurements: Measurements, client: str) -> list[tuple[float, float, bool, int]]:
    """Return (time of the response, wait, expired, bytes) of each request of a client."""
    return [
        (round(answer.at_ms, 3), round(answer.waited_ms, 3), answer.expired, answer.bytes)
        for answer in measurements.answered
        if answer.client == client
    ]


def test_produce_waits_for_follower() -> None:
    """The record arrives at 300; the follower fetches it at once, and 2 ms later reports its position."""
    measurements = simulate(
        plan(
            producer([300.0, 10_000], [39, 39]),
            reader("f", replica=2, turn_ms=2.0),
            reader("c", turn_ms=1.0),
            duration_ms=400,
        ),
        seed=1,
    )
    assert _answers(measurements, "p") == [(302.5, 2, False, 100)]
    (fetched,) = _answers(measurements, "c")
    assert (fetched[0], fetched[2:]) == (302.5, (False, 100))
    ((who, delivery_ms),) = measurements.delivery_ms
    assert who == "c"
    assert delivery_ms == pytest.approx(2.0)
    # Counted from the arrival of the record, which is sent half a millisecond later.
    ((whose, produce_latency_ms),) = measurements.produce_latency_ms
    assert whose == "p"
    assert produce_latency_ms == pytest.approx(2.5)
    by_name = effects(measurements, 0.4)
    assert (by_name["append_to_answer_p50_ms"], by_name["p: produce_latency_p99_ms"]) == (2.0, 2.5)


def test_fetch_expires_at_deadline() -> None:
    measurements = simulate(plan(reader("c", turn_ms=1.0, max_wait_ms=100), duration_ms=1000), seed=1)
    answers = _answers(measurements, "c")
    assert len(answers) == 9
    assert all(expired and size == 0 and 99 <= waited <= 100 for _, waited, expired, size in answers)
    assert all(100 <= after[0] - before[0] <= 101 for before, after in pairwise(answers))


def test_larger_min_bytes_means_fewer_responses() -> None:
    """One record of 100 bytes every 10 ms gives a hundred responses of one record, or ten of ten."""
    few, many = (
        _answers(
            simulate(plan(producer([10.0], [39], acks=1), reader("c", min_bytes=least), partitions=_ALONE), 1), "c"
        )
        for least in (1, 1000)
    )
    assert [size for *_, size in few[1:]] == [100] * len(few[1:])
    assert len(few) > 85
    assert [size for *_, size in many[1:]] == [1000] * len(many[1:])
    assert len(many) in (8, 9)


def test_waiting_requests_accumulate_records() -> None:
    """The follower fetches every 100 ms. The broker handles one request of a connection at a time, at most five are in
    flight, and further records accumulate."""
    measurements = simulate(
        plan(producer([1.0], [39]), reader("f", replica=2, turn_ms=100.0), duration_ms=3000), seed=1
    )
    sizes = [size for *_, size in _answers(measurements, "p")]
    assert sizes[0] == 100
    assert max(sizes) > 5 * sizes[0]
    assert len(sizes) < 40


def test_lingering_records_share_a_batch() -> None:
    measurements = simulate(
        plan(producer([4.0], [39], acks=1, linger_ms=10), duration_ms=500, partitions=_ALONE), seed=1
    )
    assert {size for *_, size in _answers(measurements, "p")} == {61 + 3 * 39}


def test_burst_shares_a_batch_without_linger() -> None:
    """The whole burst has arrived when the sender wakes up."""
    measurements = simulate(
        plan(producer([100.0, 0.1, 0.1], [39] * 3, acks=1), duration_ms=500, partitions=_ALONE), seed=1
    )
    assert {size for *_, size in _answers(measurements, "p")} == {61 + 3 * 39}


def test_full_batch_is_sent_at_once() -> None:
    client = producer([4.0], [39], acks=1, linger_ms=10_000, batch_bytes=61 + 2 * 39)
    measurements = simulate(plan(client, duration_ms=500, partitions=_ALONE), seed=1)
    assert {size for *_, size in _answers(measurements, "p")} == {61 + 2 * 39}


def test_result_depends_on_seed_only() -> None:
    of = plan(
        producer([7.0, 3.0], [39, 400], handling=takes(0.2)),
        reader("f", replica=2, handling=(0.1, 0.5)),
        reader("c"),
        cores=1.0,
    )
    first, again, other = (simulate(of, seed).answered for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("min_bytes", [1, 700, 5000])
@pytest.mark.parametrize("seed", [1, 2])
def test_reference_agrees_with_simulation(min_bytes: int, seed: int) -> None:
    """Two followers and two consumers with bursts on shared cores.

    The reaper has no delay and deadlines are whole milliseconds, so that the trace determines all outcomes.
    """
    of = plan(
        producer([0.4] * 7 + [37.0], [39, 900, 20, 15, 333, 41, 70, 500], keys=[0, 1, 0, 1, 1, 1, 0, 1], linger_ms=1),
        reader("f2", replica=2, keys=(0, 1), handling=(0.1, 0.8), turn=takes(1.7), max_wait_ms=30),
        reader("f3", replica=3, keys=(0, 1), handling=(0.1, 2.8), turn=takes(2.9), max_wait_ms=500, min_bytes=60),
        reader("a", keys=(0, 1), min_bytes=min_bytes, max_wait_ms=120),
        reader("b", keys=(1,), min_bytes=min_bytes, max_wait_ms=45),
        cores=1.0,
        partitions=_TWO,
        duration_ms=4000,
    )
    measurements = simulate(of, seed, traced=True)
    assert measurements.events is not None
    shift_ms, last_ms = 1_000_000_000, 3950
    events = [{**event, "time_us": event["time_us"] + shift_ms * 1000} for event in measurements.events]
    replayed = [
        (outcome.client_id, outcome.ended_us // 1000 - shift_ms, outcome.expired, outcome.watched)
        for outcome in replay(events, Config()).outcomes
    ]
    simulated = [
        (answer.client, round(answer.at_ms * 1000) // 1000, answer.expired, answer.waited_ms > 0)
        for answer in measurements.answered
    ]
    assert len(simulated) > 300
    assert sorted(end for end in replayed if end[1] < last_ms) == sorted(end for end in simulated if end[1] < last_ms)


_ALONE = (PartitionPlan("t", 0, 1, ()),)
_TWO = tuple(PartitionPlan("t", number, 1, (2, 3)) for number in range(2))
