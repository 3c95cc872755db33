"""docs/architecture.md: its example shows real values, and packages import as its layers allow."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract import read_line
from purgatory_udf.launch import command_line
from purgatory_udf.launch.backend_choice import ANY_BYTES
from purgatory_udf.launch.job import Job
from purgatory_udf.rules.engine.loop.engine_state import EngineSettings
from purgatory_udf.rules.engine.partition_engine import Engine, event_table, purge_intervals, replay
from purgatory_udf.streaming.partition_rules import PartitionRules
from purgatory_udf.streaming.stateful_adapter import Plan
from tests.docs import pages

PAGE = pages.text("docs/architecture.md")
PACKAGE = pages.ROOT / "purgatory_udf"


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"
    if isinstance(value, list):
        return ", ".join(f"{part['topic']}-{part['partition']} {part['error']} {part['bytes']}" for part in value)
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def test_example_fetch_has_shown_row() -> None:
    lines = (pages.ROOT / "docs/traces/fetch.jsonl").read_bytes().splitlines()
    events = [{**(read_line(line) or {}), "seq": seq} for seq, line in enumerate(lines, 1)]
    expirations = replay([event_table(events)], Engine(Config()), events[-1]["time_us"]).expirations
    (row,) = expirations.drop_columns(["run_id"]).to_pylist()
    (shown,) = (table for table in pages.tables(PAGE) if table.columns == ("column", "value"))
    assert [(each["column"].strip("`"), each["value"]) for each in shown.rows] == [
        (name, _shown(value)) for name, value in row.items()
    ]


def test_example_shows_real_payloads() -> None:
    """The first call has the events up to line 12, the fetch is line 10."""
    lines = (pages.ROOT / "docs/traces/fetch.jsonl").read_text(encoding="utf-8").splitlines()
    events = [{**(read_line(line.encode()) or {}), "seq": seq} for seq, line in enumerate(lines, 1)]
    config = Config(grouping="broker")
    plan = Plan("run", has_disorder=False, trace_end_us=events[-1]["time_us"])
    rules = PartitionRules(plan, config, EngineSettings(purge_intervals(config), 0))
    (chunk,) = rules.split_by_group(event_table(events[:12]))
    state, _ = rules.step(
        chunk.group, rules.decode_state(None), rules.decode_rows([chunk.payload]), chunk.time_us // 1000
    )
    assert pages.blocks(PAGE, "json") == [f"{lines[9]}\n"]
    shown = "".join(pages.blocks(PAGE, "python"))
    assert f"{type(chunk).__name__}(group={chunk.group!r}, time_us={chunk.time_us}, " in shown
    assert repr(rules.scalars(state)) in shown


def test_jobs_without_spark_match_page() -> None:
    (shown,) = (table for table in pages.tables(PAGE) if table.columns == ("job", "runs", "why"))
    documented = {name.strip(" `"): row["runs"] for row in shown.rows for name in row["job"].split(",")}
    assert documented == {
        entry.name: _runs(import_module(f"jobs.{entry.file.stem}").main) for entry in command_line.list_jobs(pages.ROOT)
    }


def _runs(job: Job) -> str:
    if not job.spark or job.max_local_bytes == ANY_BYTES:
        return "without Spark"
    return f"without Spark, up to {job.max_local_bytes // 10**9} GB" if job.max_local_bytes else "with Spark"


# The layers from top to bottom, and from left to right.
ORDER = pages.blocks(PAGE, "text")[0].split()
OURS = "purgatory_udf."
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


def _module(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def _layer_of(module: str) -> str:
    """Return the longest layer name that contains the module, or the module itself."""
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in ORDER), module)


def _imports(file: Path) -> Iterator[str]:
    """Yield the modules of this project that a file imports anywhere."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            yield from (name.removeprefix(OURS) for name in names if name.startswith(OURS))


def test_every_module_has_layer() -> None:
    assert [str(file) for file in FILES if _layer_of(_module(file)) not in ORDER] == []


@pytest.mark.parametrize("name", ORDER)
def test_package_imports_only_later_layers(name: str) -> None:
    """Layers below it, or to its right, so there are no import cycles."""
    files = [file for file in FILES if _layer_of(_module(file)) == name]
    before = ORDER[: ORDER.index(name)]
    assert files != []
    assert [(str(file), used) for file in files for used in _imports(file) if _layer_of(used) in before] == []


def test_rules_import_no_spark() -> None:
    rules = [PACKAGE / name for name in ("contract", "common", "rules")]
    files = [file for folder in rules for file in folder.rglob("*.py")]
    assert len(files) > 50
    assert [str(file) for file in files if "pyspark" in file.read_text(encoding="utf-8")] == []


def test_only_jit_package_imports_numba() -> None:
    """It sets the target CPU before it imports numba."""
    users = [file for file in FILES if {"numba", "llvmlite"} & set(_foreign(file))]
    assert {file.parent.name for file in users} == {"jit"}


def _foreign(file: Path) -> Iterator[str]:
    """Yield the third-party and standard packages that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
