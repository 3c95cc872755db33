"""Predictions held against what a real cluster then did: the same clients three times, one setting changed.

`client-figures.json` has what happened. The scenario is fitted to the first recording alone.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from purgatory_udf.prediction.fit import fit
from purgatory_udf.prediction.fit_check import Figures
from purgatory_udf.prediction.prediction_commands import scenario_yaml, write_scenario
from purgatory_udf.prediction.prediction_runs import UNCHANGED, Prediction, parse_variants, predict
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.simulation.scenario_file import read_scenario
from tests.prediction.imported import recorded_cluster
from tests.prediction.scenarios import small_scenario
from tests.prediction.truth import missed
from tests.support.recorded import file

pytestmark = pytest.mark.long

WORDS = ("minbytes", "fetch.consumer.min_bytes=20000", "replicabytes", "fetch.follower.min_bytes=4000")


@cache
def _fitted() -> Scenario:
    return fit(recorded_cluster("W5-base"))


@cache
def _predicted() -> Prediction:
    return predict(_fitted(), parse_variants(WORDS), seeds=1)


def _happened(recording: str) -> Figures:
    figures: Figures = json.loads(file("traces", "client-figures.json").read_text(encoding="utf-8"))[recording]
    return figures


def test_the_fit_knows_the_cluster_by_its_log() -> None:
    scenario = _fitted()
    assert scenario.fitted is not None
    # The recorded cluster and its clients had one machine of two cores, which the log does not say.
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


def test_the_scenario_is_a_file_that_reads_as_it_was_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fitted") / "cluster.yaml"
    write_scenario(_fitted(), path)
    assert read_scenario(path) == _fitted()
    head = scenario_yaml(_fitted()).split("fitted:")[0]
    assert "fetch_min_bytes: 1" in head
    assert "linger_ms:" in head


def test_the_unchanged_scenario_does_what_was_recorded_client_by_client() -> None:
    checked = _predicted().checked
    assert checked.judged == 50
    assert (checked.far, checked.doubts) == ({}, {})
    assert missed(_predicted().played[UNCHANGED].median, _happened("W5-base")) == []


@pytest.mark.parametrize(("variant", "at_most"), [("minbytes", 2), ("replicabytes", 4)])
def test_a_prediction_comes_as_near_to_what_happened_as_one_recording_to_another(variant: str, at_most: int) -> None:
    """Nine figures in ten of 40, where saying that nothing changes misses half of them."""
    happened = _happened(f"W5-{variant}")
    assert len(missed(_happened("W5-base"), happened)) >= 20
    assert len(missed(_predicted().played[variant].median, happened)) <= at_most


def test_a_prediction_says_what_others_feel() -> None:
    """Consumers that ask for more relieve the brokers, and get records later; produces wait for slower followers."""
    medians = {name: played.median_effects for name, played in _predicted().played.items()}
    requests = {name: effects["broker 1: requests_per_s"] for name, effects in medians.items()}
    assert requests["minbytes"] < 0.7 * requests[UNCHANGED]
    assert medians["minbytes"]["append_to_answer_p50_ms"] > 20 * medians[UNCHANGED]["append_to_answer_p50_ms"]
    produce = {name: played.median["p-a"]["PRODUCE"]["p50_ms"] for name, played in _predicted().played.items()}
    assert produce["replicabytes"] > 20 * produce[UNCHANGED]


def test_several_seeds_are_told_by_their_median_and_from_the_least_to_the_greatest() -> None:
    played = predict(small_scenario(), {}, seeds=3).played[UNCHANGED]
    each = sorted(figures["c"]["FETCH"]["p50_ms"] for figures in played.figures)
    least, greatest = played.range
    assert [figures["c"]["FETCH"]["p50_ms"] for figures in (least, played.median, greatest)] == each
    assert len(set(each)) == 3


def test_a_prediction_is_json_by_variant_client_and_api() -> None:
    prediction = json.loads(_predicted().as_json())
    assert list(prediction) == [UNCHANGED, "minbytes", "replicabytes"]
    assert set(prediction["minbytes"]) == set(_happened("W5-minbytes"))
    assert set(prediction["minbytes"]["follower"]["FETCH"]) == set(_happened("W5-base")["follower"]["FETCH"])
