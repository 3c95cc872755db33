"""Predictions compared with recordings of a real cluster under other settings.

The same clients were recorded three times; `client-figures.json` has their figures. The scenario is fitted only to the
first recording.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from purgatory_udf.prediction import prediction_runs
from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.fit_check import Figures
from purgatory_udf.prediction.prediction_commands import scenario_yaml, write_scenario
from purgatory_udf.prediction.prediction_runs import UNCHANGED, Prediction, parse_variants, predict
from purgatory_udf.simulation.scenario import Scenario, read_scenario
from tests.prediction.imported import recorded_cluster
from tests.prediction.scenarios import small_scenario
from tests.prediction.truth import missed
from tests.support.recorded import data_file

pytestmark = pytest.mark.long

WORDS = ("minbytes", "fetch.consumer.min_bytes=20000", "replicabytes", "fetch.follower.min_bytes=4000")


@cache
def _fitted() -> Scenario:
    return fit(recorded_cluster("W5-base"))


@cache
def _predicted() -> Prediction:
    return predict(_fitted(), parse_variants(WORDS), seeds=1)


def _recorded(recording: str) -> Figures:
    figures: Figures = json.loads(data_file("traces", "client-figures.json").read_text(encoding="utf-8"))[recording]
    return figures


def test_fit_finds_settings_of_cluster() -> None:
    scenario = _fitted()
    assert scenario.fitted is not None
    # The cluster and its clients shared one machine with two cores, which the log does not contain.
    assert scenario.fitted.host.cores == 2
    assert {producer.name: (producer.acks, producer.linger_ms in (4, 5, 6)) for producer in scenario.producers} == {
        "p-a": ("all", True),
        "p-b": (1, True),
        "p-burst": ("all", True),
    }
    assert {
        consumer.name: (consumer.group, consumer.fetch_min_bytes, consumer.fetch_max_wait_ms)
        for consumer in scenario.consumers
    } == {
        "c-idle": ("g-idle", 1, 500),
        "c-mix": ("g-mix", 1, 500),
        "c-one-1": ("g-one", 1, 500),
        "c-one-2": ("g-one", 1, 500),
        "c-two": ("g-two", 1, 500),
        "r-1": ("g-rdk", 1, 500),
    }
    assert (scenario.brokers.replica_fetch_min_bytes, scenario.brokers.replica_fetch_wait_max_ms) == (1, 500)
    followers = {name: sorted(reader.reads) for name, reader in scenario.fitted.readers.items() if reader.replica >= 0}
    assert followers == {
        "broker-1-fetcher-0": [2, 3],
        "broker-2-fetcher-0": [1, 3],
        "broker-3-fetcher-0": [1, 2],
    }
    assert any("max.in.flight" in each for each in scenario.fitted.unknown)


def test_scenario_file_round_trips(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fitted") / "cluster.yaml"
    write_scenario(_fitted(), path)
    assert read_scenario(path) == _fitted()
    head = scenario_yaml(_fitted()).split("fitted:")[0]
    assert "fetch_min_bytes: 1" in head
    assert "linger_ms:" in head


@pytest.mark.nightly
def test_unchanged_scenario_reproduces_recording() -> None:
    checked = _predicted().checked
    assert checked.compared == 50
    assert (checked.missed, checked.doubts) == ({}, {})
    assert missed(_predicted().results[UNCHANGED].median, _recorded("W5-base")) == []


@pytest.mark.parametrize(("variant", "at_most"), [("minbytes", 2), ("replicabytes", 4)])
def test_prediction_is_within_tolerance(variant: str, at_most: int) -> None:
    """At least nine of ten figures are; assuming no change would miss half of them."""
    recorded = _recorded(f"W5-{variant}")
    assert len(missed(_recorded("W5-base"), recorded)) >= 20
    assert len(missed(_predicted().results[variant].median, recorded)) <= at_most


def test_prediction_shows_effects_on_cluster() -> None:
    """A larger `fetch.min.bytes` reduces requests and delays records; produces wait for slower followers."""
    medians = {name: results.median_effects for name, results in _predicted().results.items()}
    requests = {name: effects["broker 1: requests_per_s"] for name, effects in medians.items()}
    assert requests["minbytes"] < 0.7 * requests[UNCHANGED]
    assert medians["minbytes"]["append_to_answer_p50_ms"] > 20 * medians[UNCHANGED]["append_to_answer_p50_ms"]
    produce = {name: results.median["p-a"]["PRODUCE"]["p50_ms"] for name, results in _predicted().results.items()}
    assert produce["replicabytes"] > 20 * produce[UNCHANGED]


def test_seeds_are_summarized_by_median_and_range() -> None:
    results = predict(small_scenario(), {}, seeds=3).results[UNCHANGED]
    each = sorted(figures["c"]["FETCH"]["p50_ms"] for figures in results.figures)
    low, high = results.range
    assert [figures["c"]["FETCH"]["p50_ms"] for figures in (low, results.median, high)] == each
    assert len(set(each)) == 3


def test_processes_change_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = predict(small_scenario(), {}, seeds=2)
    monkeypatch.setattr(prediction_runs, "available_cores", lambda: 2)
    monkeypatch.setattr(prediction_runs, "SEQUENTIAL_S", 0)
    assert predict(small_scenario(), {}, seeds=2).results == alone.results


def test_prediction_as_json() -> None:
    prediction = _predicted().as_json()
    assert list(prediction) == [UNCHANGED, "minbytes", "replicabytes"]
    assert set(prediction["minbytes"]) == set(_recorded("W5-minbytes"))
    assert set(prediction["minbytes"]["follower"]["FETCH"]) == set(_recorded("W5-base")["follower"]["FETCH"])
