"""Predictions for two more real clusters, which were recorded after the model had been built.

The scenario is fitted to the unchanged cluster and compared with recordings under other settings.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from purgatory_udf.prediction import prediction_runs
from purgatory_udf.prediction.fit_check import Figures
from purgatory_udf.prediction.prediction_runs import UNCHANGED, Prediction, parse_variants, predict
from purgatory_udf.simulation.scenario import read_scenario
from purgatory_udf.sources.request_log.log_files import read_text
from tests.prediction.truth import missed
from tests.support.recorded import data_file

pytestmark = pytest.mark.long

ONE_IN_TEN = 4
VARIANTS = {
    "one": ("max-wait", "replica-wait", "linger", "no-linger", "load"),
    "two": ("min-bytes", "replica-bytes", "replica-bytes-and-wait", "linger", "load"),
}


class Recorded(NamedTuple):
    settings: list[str]
    figures: Figures


@cache
def _recorded(cluster: str) -> dict[str, Recorded]:
    document = json.loads(data_file("trials", f"{cluster}.json").read_text(encoding="utf-8"))
    return {name: Recorded(**fields) for name, fields in document.items()}


@cache
def _predicted(cluster: str) -> Prediction:
    changes = {name: recorded.settings for name, recorded in _recorded(cluster).items() if name != UNCHANGED}
    words = [word for name, settings in changes.items() for word in (name, *settings)]
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder, f"{cluster}.yaml")
        path.write_text(read_text(data_file("trials", f"{cluster}.yaml")), encoding="utf-8")
        # Each test process has one core; starting others takes as long as some simulations.
        patch.setattr(prediction_runs, "available_cores", lambda: 1)
        return predict(read_scenario(path), parse_variants(words), seeds=1)


def _marks(cluster: str) -> list[pytest.MarkDecorator]:
    """Leave the second cluster to the nightly tests."""
    return [pytest.mark.nightly] if cluster == "two" else []


@pytest.mark.parametrize("cluster", [pytest.param(cluster, marks=_marks(cluster)) for cluster in VARIANTS])
def test_unchanged_cluster_is_reproduced(cluster: str) -> None:
    predicted = _predicted(cluster)
    assert list(_recorded(cluster)) == [UNCHANGED, *VARIANTS[cluster]]
    assert predicted.checked.reasons() == []
    assert missed(predicted.results[UNCHANGED].median, _recorded(cluster)[UNCHANGED].figures) == []


@pytest.mark.parametrize(
    ("cluster", "variant"),
    [
        pytest.param(cluster, name, marks=_marks(cluster), id=f"{cluster}-{name}")
        for cluster, names in VARIANTS.items()
        for name in names
    ],
)
def test_nine_of_ten_figures_are_within_tolerance(cluster: str, variant: str) -> None:
    """Also, the prediction is at least as good as assuming no change."""
    recorded = _recorded(cluster)
    truth = recorded[variant].figures
    assert sum(len(apis) for apis in truth.values()) == 10
    errors = missed(_predicted(cluster).results[variant].median, truth)
    assert len(errors) <= min(ONE_IN_TEN, len(missed(recorded[UNCHANGED].figures, truth)))
