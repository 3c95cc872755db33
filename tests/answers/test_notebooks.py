"""Every notebook runs from top to bottom on a replayed folder and is stored without output."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from purgatory_udf.contract.tables import WHAT_IF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.answers.metrics import Metrics

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))


def _cells(notebook: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _shown(notebook: Path) -> list[str]:
    """Run the cells in order, as a kernel does, and return the output of the last expression of each."""
    names: dict[str, Any] = {"__name__": notebook.stem}
    shown = []
    for cell in _cells(notebook):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, notebook.name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
            bundle = getattr(value, "_repr_mimebundle_", None)
            shown.append(str(bundle(include=None, exclude=None)) if bundle else repr(value))
    return shown


def test_notebooks_have_no_output_and_no_definitions() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == [
        "01_what_expired",
        "02_timing_wheel",
        "03_what_if",
        "04_query_without_spark",
    ]
    for notebook in NOTEBOOKS:
        for cell in _cells(notebook):
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            nodes = ast.walk(ast.parse("".join(cell["source"])))
            assert not [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]


@pytest.fixture
def out(metrics: Metrics, story_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the story with its metrics, set as the folder of the notebooks."""
    monkeypatch.setenv("PURGATORY_OUT", str(story_folder))
    return story_folder


@pytest.mark.nightly
def test_notebook_finds_cause_of_expirations(
    spark: SparkSession, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _shown(NOTEBOOKS[0])
    assert shown[0] == "'1,619 operations, 79.9 % had to wait, 94 expired'"
    assert "type=DelayedProduceMetric" in shown[1]
    assert "vegaEmbed" in shown[2]
    assert "checkout-web" in shown[3]
    assert "replica 3 had reached" in capsys.readouterr().out


def test_notebook_draws_timing_wheel() -> None:
    shown = _shown(NOTEBOOKS[1])
    assert "1404" in shown[0]
    assert ["vegaEmbed" in picture for picture in shown[1:3]] == [True, True]
    assert shown[3].startswith("{5: (")


def test_notebook_reads_what_if_table(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"variant": "half", "kind": "produce", "change": "expiration appears", "baseline_wait_ms": 7, "shift_ms": 3}
    write_deltalake(str(tmp_path / "what_if"), pa.Table.from_pylist([row], schema=WHAT_IF))
    monkeypatch.setenv("PURGATORY_OUT", str(tmp_path))
    shown = _shown(NOTEBOOKS[2])
    assert ["half" in each and "produce" in each for each in shown] == [True, True, True]


def test_notebook_reads_tables_without_spark(out: Path) -> None:
    try:
        shown = _shown(NOTEBOOKS[3])
    finally:
        duckdb.sql("RESET TimeZone")
    assert "high_watermark" in shown[-3]
    assert "2026-03-02 09:00:04" in shown[-2]
    assert "checkout-app" in shown[-1]
