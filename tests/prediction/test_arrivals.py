"""When records came, by the requests that they went in."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from purgatory_udf.prediction.arrival_model import estimate_linger_ms, record_arrivals


def _requests(tried: list[float], waited: float = 1.0, broker: int = 1) -> pd.DataFrame:
    """Each handled in half a millisecond, and so sent a millisecond before it was tried."""
    frame = pd.DataFrame({"tried": tried, "handled": 0.5, "broker": broker})
    return frame.assign(written=frame["tried"] + waited)


def _batches(records: list[int]) -> pd.DataFrame:
    of_each = {
        "request": range(len(records)),
        "key": 0,
        "records": records,
        "bytes": [61 + 10 * count for count in records],
    }
    return pd.DataFrame(of_each)


def test_a_record_came_when_it_began_to_linger() -> None:
    arrived = record_arrivals(_requests([100.0, 200.0]), _batches([1, 1]), 5)
    assert arrived.to_dict("list") == {"at": [94.0, 194.0], "key": [0, 0], "bytes": [10, 10]}


def test_the_others_of_a_request_came_while_the_first_lingered() -> None:
    arrived = record_arrivals(_requests([100.0, 200.0]), _batches([3, 1]), 5)
    assert arrived["at"].iloc[0] == 94
    assert arrived["at"].iloc[1:3].between(94, 99).all()
    assert arrived["at"].iloc[3] == 194


def test_many_times_more_than_on_average_came_at_once() -> None:
    calm, count = [100.0 * number for number in range(1, 50)], [1] * 49
    arrived = record_arrivals(_requests([*calm, 5000.0]), _batches([*count, 20]), 5)
    assert arrived["at"].iloc[-20:].between(4994, 4994.5).all()


def test_requests_that_wait_for_each_other_had_gathered_their_records() -> None:
    """Each is handled as soon as the one before is answered."""
    tried = [100.0 * number for number in range(1, 11)]
    arrived = record_arrivals(_requests(tried, waited=99.0), _batches([1, *[6] * 9]), 5)
    assert arrived["at"].iloc[0] == 94
    assert arrived["at"].iloc[1:].between(99, 999).all()
    gaps = arrived["at"].diff().iloc[1:]
    assert gaps.max() < 120
    assert gaps.median() > 5


def test_after_a_long_wait_a_busy_host_may_take_its_time() -> None:
    """Each is handled 9 ms after the one before was answered: what it brings had gathered meanwhile."""
    tried = [100.0 * number for number in range(1, 11)]
    arrived = record_arrivals(_requests(tried, waited=90.5), _batches([1, *[6] * 9]), 5)
    assert arrived["at"].diff().iloc[1:].max() < 120
    assert arrived["at"].diff().iloc[1:].median() > 5


def test_of_a_producer_with_bursts_small_requests_are_some_too() -> None:
    """Too few to tell by themselves, and they had waited for the one before."""
    calm = [500.0 * number for number in range(1, 40)]
    tried = [*calm, calm[-1] + 2]
    arrived = record_arrivals(_requests(tried), _batches([7] * 39 + [3]), 5)
    assert arrived["at"].diff().iloc[-2:].sum() <= 0.5


@pytest.mark.parametrize(("gap", "linger"), [(20.0, 20), (5.0, 5)])
def test_the_least_gaps_tell_how_long_records_linger(gap: float, linger: int) -> None:
    spread = [gap + 0.37 * number for number in range(300)]
    tried = pd.Series([0.0, *spread]).cumsum().tolist()
    estimate = estimate_linger_ms(_requests(tried))
    assert estimate is not None
    assert abs(estimate - linger) <= 2


def test_requests_that_come_at_any_distance_tell_that_records_do_not_linger() -> None:
    """Eighty milliseconds lie between them on average, but hardly less than five only where they linger."""
    gaps = -80 * np.log(np.random.default_rng(1).random(2000))
    for linger in (0, 5):
        assert estimate_linger_ms(_requests((gaps + linger).cumsum().tolist(), waited=0.5)) in (linger, linger - 1)


def test_requests_that_were_held_up_do_not_tell_it() -> None:
    """Every other one is handled as soon as the one before is answered; of the others, some come soon, some late."""
    gaps = -150 * np.log(np.random.default_rng(1).random(1000))
    tried = np.stack([gaps, np.full(1000, 60.0)], axis=1).ravel().cumsum().tolist()
    assert estimate_linger_ms(_requests(tried, waited=59.0)) is None


def test_where_records_linger_long_bursts_are_still_bursts() -> None:
    """Seven at once, twice in a second, and each request is one: what comes in fifty milliseconds at random is less."""
    tried = [500.0 * number for number in range(1, 100)]
    arrived = record_arrivals(_requests(tried), _batches([7] * 99), 50)
    assert arrived["at"].diff().iloc[1:7].sum() <= 0.5


def test_few_requests_do_not_tell_it() -> None:
    assert estimate_linger_ms(_requests([10.0 * number for number in range(50)])) is None
