"""Quantiles of a distribution, and samples drawn from them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from purgatory_udf.prediction.fitted_models import QUANTILE_COUNT, quantiles
from purgatory_udf.prediction.model_broker import Sampler


def _drawn(fitted: list[float]) -> list[float]:
    sampler = Sampler(fitted, Random(1))
    return [sampler() for _ in range(50_000)]


def test_few_samples_are_their_own_quantiles() -> None:
    assert quantiles(np.array([3.0, 1.0, 2.0])) == [1, 2, 3]
    assert quantiles(np.array([])) == [0]


def test_long_tail_keeps_its_mean() -> None:
    samples = np.random.default_rng(1).lognormal(0, 1.5, 20_000)
    fitted = quantiles(samples)
    assert len(fitted) == QUANTILE_COUNT
    drawn = _drawn(fitted)
    assert np.mean(drawn) == pytest.approx(samples.mean(), rel=0.05)
    for share in (50, 90, 95, 98):
        assert np.percentile(drawn, share) == pytest.approx(np.percentile(samples, share), rel=0.1)


def test_outlier_does_not_raise_last_hundredth() -> None:
    """Ten of the highest hundred samples are long: the mean of that hundredth is 10.9, not 50."""
    samples = np.array([1.0] * 9990 + [100.0] * 10)
    assert quantiles(samples)[-3:] == [1, 1, pytest.approx(20.8)]
    assert np.mean(_drawn(quantiles(samples))) == pytest.approx(samples.mean(), abs=0.02)
