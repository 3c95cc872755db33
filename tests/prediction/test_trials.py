"""Two more clusters, whose other settings nobody had in view when the model was made: what was fitted to the unchanged
one, played, and held against what a real cluster did under each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from purgatory_udf.prediction import prediction_runs
from purgatory_udf.prediction.fit_check import Figures
from purgatory_udf.prediction.prediction_runs import UNCHANGED, Prediction, parse_variants, predict
from purgatory_udf.simulation.scenario_file import read_scenario
from purgatory_udf.sources.request_log.lines.log_files import read_text
from tests.prediction.truth import missed
from tests.support.recorded import file

pytestmark = pytest.mark.long

ONE_IN_TEN = 4
VARIANTS = {
    "one": ("max-wait", "replica-wait", "linger", "no-linger", "load"),
    "two": ("min-bytes", "replica-bytes", "replica-bytes-and-wait", "linger", "load"),
}


class Happened(NamedTuple):
    settings: list[str]
    figures: Figures


@cache
def _happened(cluster: str) -> dict[str, Happened]:
    document = json.loads(file("trials", f"{cluster}.json").read_text(encoding="utf-8"))
    return {name: Happened(**fields) for name, fields in document.items()}


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prediction]:
    predictions = {}
    for cluster in VARIANTS:
        path: Path = tmp_path_factory.mktemp("trials") / f"{cluster}.yaml"
        path.write_text(read_text(file("trials", f"{cluster}.yaml")), encoding="utf-8")
        changes = {name: happened.settings for name, happened in _happened(cluster).items() if name != UNCHANGED}
        words = [word for name, settings in changes.items() for word in (name, *settings)]
        with pytest.MonkeyPatch.context() as patch:
            # Each of the tests' processes has a core; another's start would take as long as some plays.
            patch.setattr(prediction_runs, "_cores", lambda: 1)
            predictions[cluster] = predict(read_scenario(path), parse_variants(words), seeds=1)
    return predictions


@pytest.mark.parametrize("cluster", VARIANTS)
def test_the_unchanged_cluster_is_reproduced(cluster: str, predicted: dict[str, Prediction]) -> None:
    assert list(_happened(cluster)) == [UNCHANGED, *VARIANTS[cluster]]
    assert predicted[cluster].checked.reasons() == []
    assert missed(predicted[cluster].played[UNCHANGED].median, _happened(cluster)[UNCHANGED].figures) == []


@pytest.mark.parametrize(
    ("cluster", "variant"), [(cluster, name) for cluster, names in VARIANTS.items() for name in names]
)
def test_nine_figures_in_ten_are_near_to_what_happened(
    cluster: str, variant: str, predicted: dict[str, Prediction]
) -> None:
    """And no fewer than if nothing changed."""
    happened = _happened(cluster)
    truth = happened[variant].figures
    assert sum(len(apis) for apis in truth.values()) == 10
    far = missed(predicted[cluster].played[variant].median, truth)
    assert len(far) <= min(ONE_IN_TEN, len(missed(happened[UNCHANGED].figures, truth)))
