"""The commands `fit`, `tune` and `what-if --like`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs import fit, tune, what_if
from purgatory_udf.prediction.prediction_commands import write_scenario
from tests.prediction.scenarios import small_scenario


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of the small scenario."""
    path = tmp_path / "cluster.yaml"
    write_scenario(small_scenario(), path)
    return path


def test_what_if_like_file_predicts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    json_file = file.parent / "told.json"
    words = ["--variant", "big", "fetch.min_bytes=700", "--variant", "fast", "producer.rate=x2"]
    assert what_if.main.status(["--like", str(file), *words, "--seeds", "1", "--json", str(json_file)]) == 0
    assert list(json.loads(json_file.read_text(encoding="utf-8"))) == ["unchanged", "big", "fast"]
    text = capsys.readouterr().out
    assert "Clients: median over 1 seed " in text
    big, fast = text.splitlines()[:2]
    assert big.startswith("big: brokers answer ") and fast.startswith("fast: brokers answer ")
    assert "Effects on the cluster" in text
    page = file.parent / "prediction.html"
    assert big.partition("(")[0] in page.read_text(encoding="utf-8")
    first = page.stat()
    assert what_if.main.status(["--like", str(file), *words[:3], "--seeds", "1"]) == 0
    assert capsys.readouterr().out.endswith(f"Page: {file.parent / 'prediction-2.html'}\n")
    assert page.stat() == first


def test_figures_are_printed_alone(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--variant", "big", "fetch.min_bytes=700", "--seeds", "1", "--json", "-"]
    assert what_if.main.status(["--like", str(file), *words]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["unchanged", "big"]


def test_tune_prints_frontier_and_best_setting(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--goal",
        "c: per_s -45%",
        "--within",
        "append_to_answer_p99_ms <= 60",
        "--over",
        "fetch.min_bytes=1..900",
    ]
    assert tune.main.status(["--like", str(file), *options, "--seeds", "1"]) == 0
    text = capsys.readouterr().out
    assert "\nFrontier\n" in text
    assert "Best: fetch.min_bytes=" in text
    assert (file.parent / "tune.html").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--variant a fetch.min_bytes=1", "give one of --events"),
        ("--like F --events x --variant a fetch.min_bytes=1", "give one of --events"),
        ("--like F --variant a produce.timeout_ms=1", "produce.timeout_ms: unknown key; predictions support"),
        ("--like F --variant a fetch.min_bytes=1 --scale 2", "--scale needs --closed-loop"),
        ("--like F --variant a fetch.min_bytes=1 --set drain=false", "--config and --set cannot be used with --like"),
        ("--like no.yaml --variant a fetch.min_bytes=1", "no.yaml: no such file"),
        ("--events x --variant a fetch.min_bytes=1", "--out is missing"),
        ("--events x --out o --variant a fetch.min_bytes=1 --seeds 3", "--seeds needs --like"),
    ],
)
def test_invalid_options_are_rejected(words: str, text: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert what_if.main.check([str(file) if word == "F" else word for word in words.split()]) == 2
    assert text in capsys.readouterr().err


def test_fit_rejects_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit.main.check(["--out", str(tmp_path / "no"), "--scenario-file", "f.yaml"]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert fit.main.check(["--out", str(tmp_path), "--scenario-file", "-"]) == 2
    assert "--scenario-file -: name a file" in capsys.readouterr().err


def test_unfitted_scenario_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text("shows: nothing\n", encoding="utf-8")
    assert what_if.main.status(["--like", str(plain), "--variant", "a", "fetch.min_bytes=1"]) == 2
    assert "the scenario has no section 'fitted'" in capsys.readouterr().err
