"""The search for settings: its options, its result on a small cluster, and the pages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.prediction.fit_check import check_fit, medians
from purgatory_udf.prediction.prediction_commands import (
    MAX_CLIENTS_DRAWN,
    busiest_clients,
    fit_page,
    prediction_page,
    run_prediction,
    run_tuning,
    tuning_page,
    write_scenario,
)
from purgatory_udf.prediction.prediction_runs import UNCHANGED, parse_variants, predict
from purgatory_udf.prediction.simulation_plan import require_fitted
from purgatory_udf.prediction.tuning import (
    Goal,
    Limit,
    SettingRange,
    TuningResult,
    parse_goal,
    parse_limit,
    parse_ranges,
    tune,
)
from tests.prediction.scenarios import small_scenario

pytestmark = pytest.mark.long


def test_options_are_parsed() -> None:
    assert parse_goal("requests_per_s -50%") == Goal("requests_per_s", -50)
    assert parse_goal("c-mix: kb +200 %") == Goal("c-mix: kb", 200)
    assert parse_limit("append_to_answer_p99_ms <= 50") == Limit("append_to_answer_p99_ms", True, 50)
    assert parse_ranges(["fetch.min_bytes=1..100000", "producer.linger_ms[client_id=a]=0..50"]) == [
        SettingRange("fetch.min_bytes", 1, 100_000),
        SettingRange("producer.linger_ms[client_id=a]", 0, 50),
    ]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: parse_goal("fewer requests"), "--goal fewer requests: expected a figure and its change"),
        (lambda: parse_limit("p99 < 50"), "--within p99 < 50: expected a figure and its limit"),
        (lambda: parse_ranges(["fetch.min_bytes=5"]), "--over fetch.min_bytes=5: expected key=low..high"),
        (lambda: parse_ranges(["fetch.bytes=1..5"]), "fetch.bytes: unknown key; predictions support"),
        (
            lambda: parse_ranges(["fetch.min_bytes=1..5", "fetch.min_bytes=7..9"]),
            "--over fetch.min_bytes=7..9: fetch.min_bytes already has a range",
        ),
        (lambda: parse_ranges([]), "--over: expected one to 3 settings, got 0"),
    ],
)
def test_invalid_option_is_reported(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(UserError) as raised:
        ask()
    assert str(raised.value).startswith(message)


def test_grid_is_logarithmic_with_both_ends() -> None:
    assert SettingRange("fetch.min_bytes", 1, 10_000).grid(5) == [1, 10, 100, 1000, 10_000]
    assert SettingRange("producer.linger_ms", 0, 8).grid(4) == [0, 1, 2, 4, 8]


@pytest.fixture(scope="module")
def tuned() -> TuningResult:
    """Return a search for half as many fetches: two records per response, of which the first waits 20 ms."""
    return tune(
        small_scenario(),
        parse_goal("c: per_s -45%"),
        parse_limit("append_to_answer_p99_ms <= 60"),
        parse_ranges(["fetch.consumer.min_bytes=1..5000"]),
        seeds=1,
    )


def test_search_finds_best_setting(tuned: TuningResult) -> None:
    assert tuned.chosen is not None
    assert 362 < tuned.chosen.values[0] <= 724
    assert tuned.chosen.within < 30
    on_the_frontier = [(trial.within, trial.goal) for trial in tuned.frontier]
    assert on_the_frontier == sorted(on_the_frontier)
    assert [goal for _, goal in on_the_frontier] == sorted((goal for _, goal in on_the_frontier), reverse=True)
    assert any(not trial.allowed for trial in tuned.tried)


def test_frontier_is_simulated_in_full_length(tuned: TuningResult) -> None:
    assert all(trial.is_full_length for trial in tuned.frontier)
    assert any(not trial.is_full_length for trial in tuned.tried)


def test_nearest_setting_is_named_if_goal_is_missed() -> None:
    over = parse_ranges(["fetch.consumer.min_bytes=1..5000"])
    tuned = tune(small_scenario(), parse_goal("c: per_s -95%"), parse_limit("append_to_answer_p99_ms <= 60"), over, 1)
    assert tuned.chosen is None
    (verdict,) = (line for line in tuned.lines() if line.startswith("No tried setting reaches"))
    assert re.search(
        r"the nearest within the limit is fetch\.consumer\.min_bytes=\d+: c: per_s 16\.67 \(-66\.7 %\), ", verdict
    )


def test_unknown_figure_is_reported_with_known_ones() -> None:
    with pytest.raises(UserError, match=r"c: latency: unknown figure; use requests_per_s, .*'c: FIGURE'.* per_s"):
        tune(
            small_scenario(),
            parse_goal("c: latency -5%"),
            parse_limit("c: p99_ms <= 9"),
            parse_ranges(["fetch.min_bytes=1..9"]),
            1,
        )


def test_pages_contain_charts_and_tables(tuned: TuningResult) -> None:
    scenario = small_scenario()
    predicted = predict(scenario, parse_variants(["big", "fetch.consumer.min_bytes=700"]), 1)
    pages = {
        "produces rates waits": fit_page(predicted.checked, ["Fitted", "unknown: linger.ms"]),
        "effects produces rates waits": prediction_page(predicted),
        "frontier": tuning_page(tuned),
    }
    for figures, page in pages.items():
        (specs,) = re.findall(r'<script type="application/json" id="pictures">(.*?)</script>', page, re.DOTALL)
        assert sorted(json.loads(specs)) == sorted(figures.split())
        assert all(f"<figure id={name}>" in page for name in figures.split())
        assert "<table>" in page
    assert "<td>linger.ms</td>" in pages["produces rates waits"]


def test_charts_show_busiest_clients() -> None:
    predicted = predict(small_scenario(), parse_variants(["many", "consumer.count=50"]), 1)
    of = {name: results.median for name, results in predicted.results.items()}
    assert len(busiest_clients(of)) == MAX_CLIENTS_DRAWN
    # Two tables of clients, and three effects per client.
    assert prediction_page(predicted).count("<td>c#") == 5 * 49


def test_copy_is_trusted_as_its_original() -> None:
    predicted = predict(small_scenario(), parse_variants(["more", "consumer.count=2"]), 1)
    figures = predicted.checked.recorded["c"]
    checked = replace(predicted.checked, recorded={"c": figures, "c#x": figures}, missed={("c#x", "FETCH"): ("per_s",)})
    doubted = replace(predicted, checked=checked)
    assert {who: doubted.is_trusted(who) for who in ("c", "c#2", "c#x", "c#x#2")} == {
        "c": True,
        "c#2": True,
        "c#x": False,
        "c#x#2": False,
    }


def test_commands_need_scenario_file_only(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    write_scenario(small_scenario(), file)
    lines = run_prediction(
        open_local, str(file), ["big", "fetch.min_bytes=700"], 1, tmp_path / "told.json", tmp_path / "page.html"
    )
    assert lines[-1] == f"Page: {tmp_path / 'page.html'}"
    figures = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert list(figures) == [UNCHANGED, "big"]
    assert figures["big"]["c"]["FETCH"]["per_s"] < 0.6 * figures[UNCHANGED]["c"]["FETCH"]["per_s"]
    over = ["fetch.min_bytes=1..500"]
    searched = run_tuning(open_local, str(file), "c: per_s -5%", "c: p99_ms <= 90", over, 1, tmp_path / "tune.html")
    assert searched[-1] == f"Page: {tmp_path / 'tune.html'}"
    assert (tmp_path / "tune.html").exists()


def test_client_with_missed_figure_is_not_trusted() -> None:
    fitted = require_fitted(small_scenario())
    simulated = {"c": {"FETCH": {**fitted.recorded["c"]["FETCH"].model_dump(), "per_s": 60.0, "p95_ms": 24.9}}}
    checked = check_fit(fitted, medians([simulated]))
    assert checked.missed == {("c", "FETCH"): ("per_s",)}
    assert not checked.is_trusted("c")
    recorded = fitted.recorded["c"]["FETCH"].per_s
    assert checked.lines()[-1] == f"  c: its FETCH is simulated with per_s 60 instead of {recorded:,.4g}"
    assert check_fit(fitted, {}).reasons()[0] == "c: its FETCH is not simulated"
