"""Arrival times of records, estimated from the requests that sent them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from purgatory_udf.prediction.fitted_models import estimate_linger_ms, record_arrivals


def _requests(tried: list[float], waited: float = 1.0, broker: int = 1) -> pd.DataFrame:
    """Return requests with half a millisecond of handling, which were sent a millisecond before their first try."""
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


def test_first_record_arrives_linger_before_request() -> None:
    arrived = record_arrivals(_requests([100.0, 200.0]), _batches([1, 1]), 5)
    assert arrived.to_dict("list") == {"at": [94.0, 194.0], "key": [0, 0], "bytes": [10, 10]}


def test_other_records_arrive_while_first_lingers() -> None:
    arrived = record_arrivals(_requests([100.0, 200.0]), _batches([3, 1]), 5)
    assert arrived["at"].iloc[0] == 94
    assert arrived["at"].iloc[1:3].between(94, 99).all()
    assert arrived["at"].iloc[3] == 194


def test_many_records_arrive_as_burst() -> None:
    calm, count = [100.0 * number for number in range(1, 50)], [1] * 49
    arrived = record_arrivals(_requests([*calm, 5000.0]), _batches([*count, 20]), 5)
    assert arrived["at"].iloc[-20:].between(4994, 4994.5).all()


def test_queued_requests_accumulate_records() -> None:
    """Each request is handled as soon as the previous response is sent."""
    tried = [100.0 * number for number in range(1, 11)]
    arrived = record_arrivals(_requests(tried, waited=99.0), _batches([1, *[6] * 9]), 5)
    assert arrived["at"].iloc[0] == 94
    assert arrived["at"].iloc[1:].between(99, 999).all()
    gaps = arrived["at"].diff().iloc[1:]
    assert gaps.max() < 120
    assert gaps.median() > 5


def test_request_after_long_wait_counts_as_queued() -> None:
    """Each request is handled 9 ms after the previous response; its records accumulated during the wait."""
    tried = [100.0 * number for number in range(1, 11)]
    arrived = record_arrivals(_requests(tried, waited=90.5), _batches([1, *[6] * 9]), 5)
    assert arrived["at"].diff().iloc[1:].max() < 120
    assert arrived["at"].diff().iloc[1:].median() > 5


def test_small_requests_of_bursty_producer_are_bursts() -> None:
    """The last request has few records, and waited for the previous response."""
    calm = [500.0 * number for number in range(1, 40)]
    tried = [*calm, calm[-1] + 2]
    arrived = record_arrivals(_requests(tried), _batches([7] * 39 + [3]), 5)
    assert arrived["at"].diff().iloc[-2:].sum() <= 0.5


@pytest.mark.parametrize(("gap", "linger"), [(20.0, 20), (5.0, 5)])
def test_shortest_gaps_show_linger_time(gap: float, linger: int) -> None:
    spread = [gap + 0.37 * number for number in range(300)]
    tried = pd.Series([0.0, *spread]).cumsum().tolist()
    estimate = estimate_linger_ms(_requests(tried))
    assert estimate is not None
    assert abs(estimate - linger) <= 2


def test_exponential_gaps_show_linger_time() -> None:
    """The mean gap is 80 ms; only with lingering are gaps below 5 ms rare."""
    gaps = -80 * np.log(np.random.default_rng(1).random(2000))
    for linger in (0, 5):
        assert estimate_linger_ms(_requests((gaps + linger).cumsum().tolist(), waited=0.5)) in (linger, linger - 1)


def test_queued_requests_show_no_linger_time() -> None:
    """Every second request is handled as soon as the previous response is sent; the others have random gaps."""
    gaps = -150 * np.log(np.random.default_rng(1).random(1000))
    tried = np.stack([gaps, np.full(1000, 60.0)], axis=1).ravel().cumsum().tolist()
    assert estimate_linger_ms(_requests(tried, waited=59.0)) is None


def test_long_linger_time_does_not_hide_bursts() -> None:
    """Seven records at once, twice a second; fewer would arrive at random within the 50 ms."""
    tried = [500.0 * number for number in range(1, 100)]
    arrived = record_arrivals(_requests(tried), _batches([7] * 99), 50)
    assert arrived["at"].diff().iloc[1:7].sum() <= 0.5


def test_few_requests_show_no_linger_time() -> None:
    assert estimate_linger_ms(_requests([10.0 * number for number in range(50)])) is None
