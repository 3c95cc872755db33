"""Small clusters played: who is answered when, and with what; and the reference agrees with every answer."""

from __future__ import annotations

from itertools import pairwise

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.prediction.fit_check import effects
from purgatory_udf.prediction.model_host import Measurements
from purgatory_udf.prediction.model_simulation import simulate
from purgatory_udf.prediction.simulation_plan import PartitionPlan
from purgatory_udf.rules.reference.reference_replay import replay
from tests.prediction.plans import plan, producer, reader, takes


def _answers(diary: Measurements, client: str) -> list[tuple[float, float, bool, int]]:
    """(answered at, waited, expired, bytes) of each of a client's requests."""
    return [
        (round(answer.at_ms, 3), round(answer.waited_ms, 3), answer.expired, answer.bytes)
        for answer in diary.answered
        if answer.client == client
    ]


def test_a_produce_waits_for_the_follower_and_then_the_consumer_has_it() -> None:
    """The record comes at 300, the follower is answered at once and back 2 ms later: that raises the high watermark."""
    diary = simulate(
        plan(
            producer([300.0, 10_000], [39, 39]),
            reader("f", replica=2, turn_ms=2.0),
            reader("c", turn_ms=1.0),
            duration_ms=400,
        ),
        seed=1,
    )
    assert _answers(diary, "p") == [(302.5, 2, False, 100)]
    (fetched,) = _answers(diary, "c")
    assert (fetched[0], fetched[2:]) == (302.5, (False, 100))
    ((who, reached_ms),) = diary.reached_ms
    assert who == "c"
    assert reached_ms == pytest.approx(2.0)
    # From when the record was handed over: it was sent half a millisecond later.
    ((whose, acknowledged_ms),) = diary.acknowledged_ms
    assert whose == "p"
    assert acknowledged_ms == pytest.approx(2.5)
    felt = effects(diary, 0.4)
    assert (felt["append_to_answer_p50_ms"], felt["p: produce_latency_p99_ms"]) == (2.0, 2.5)


def test_a_fetch_that_waits_in_vain_expires_at_its_deadline_and_the_next_one_follows() -> None:
    diary = simulate(plan(reader("c", turn_ms=1.0, max_wait_ms=100), duration_ms=1000), seed=1)
    answers = _answers(diary, "c")
    assert len(answers) == 9
    assert all(expired and size == 0 and 99 <= waited <= 100 for _, waited, expired, size in answers)
    assert all(100 <= after[0] - before[0] <= 101 for before, after in pairwise(answers))


def test_a_consumer_that_asks_for_more_gets_more_and_less_often() -> None:
    """A record of 100 bytes each 10 ms: a hundred answers of one, or ten of ten."""
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


def test_a_producer_whose_requests_wait_gathers_records_and_sends_fewer() -> None:
    """The follower comes back after 100 ms only: a broker handles one request of a connection at a time, five are under
    way at most, and the rest gathers."""
    diary = simulate(plan(producer([1.0], [39]), reader("f", replica=2, turn_ms=100.0), duration_ms=3000), seed=1)
    sizes = [size for *_, size in _answers(diary, "p")]
    assert sizes[0] == 100
    assert max(sizes) > 5 * sizes[0]
    assert len(sizes) < 40


def test_records_linger_and_go_together() -> None:
    diary = simulate(plan(producer([4.0], [39], acks=1, linger_ms=10), duration_ms=500, partitions=_ALONE), seed=1)
    assert {size for *_, size in _answers(diary, "p")} == {61 + 3 * 39}


def test_without_lingering_what_comes_at_once_still_goes_together() -> None:
    """The sender takes a moment to wake up: by then all of the burst is there."""
    diary = simulate(plan(producer([100.0, 0.1, 0.1], [39] * 3, acks=1), duration_ms=500, partitions=_ALONE), seed=1)
    assert {size for *_, size in _answers(diary, "p")} == {61 + 3 * 39}


def test_a_full_batch_does_not_linger() -> None:
    asked = producer([4.0], [39], acks=1, linger_ms=10_000, batch_bytes=61 + 2 * 39)
    diary = simulate(plan(asked, duration_ms=500, partitions=_ALONE), seed=1)
    assert {size for *_, size in _answers(diary, "p")} == {61 + 2 * 39}


def test_a_seed_plays_the_same_again_and_another_otherwise() -> None:
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
def test_the_reference_ends_every_operation_of_such_a_play_as_it_ended(min_bytes: int, seed: int) -> None:
    """Two followers, two consumers, bursts, on shared cores; deadlines are whole milliseconds, and the reaper is never
    late: then the trace says all."""
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
    diary = simulate(of, seed, traced=True)
    assert diary.events is not None
    shift_ms, last_ms = 1_000_000_000, 3950
    events = [{**event, "time_us": event["time_us"] + shift_ms * 1000} for event in diary.events]
    replayed = [
        (outcome.client_id, outcome.ended_us // 1000 - shift_ms, outcome.expired, outcome.watched)
        for outcome in replay(events, Config()).outcomes
    ]
    played = [
        (answer.client, round(answer.at_ms * 1000) // 1000, answer.expired, answer.waited_ms > 0)
        for answer in diary.answered
    ]
    assert len(played) > 300
    assert sorted(end for end in replayed if end[1] < last_ms) == sorted(end for end in played if end[1] < last_ms)


_ALONE = (PartitionPlan("t", 0, 1, ()),)
_TWO = tuple(PartitionPlan("t", number, 1, (2, 3)) for number in range(2))
