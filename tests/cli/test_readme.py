"""What the README and the notebooks' README show works on tables as this version makes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from purgatory_udf.launch import catalog, command_line
from purgatory_udf.stream import delta
from purgatory_udf.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_every_command_names_a_job_of_the_tree() -> None:
    shell = "\n".join(_blocks(README, "bash")).replace("\\\n", " ")
    lines = [
        line.split("#")[0].split() for line in re.findall(r"\./spark-submit\.sh(.*)", shell.replace(".gz#env", ""))
    ]
    jobs = [line.job for line in map(command_line.parse, lines) if line.job]
    assert jobs[:3] == ["ingest", "replay", "audit"]
    assert [job for job in jobs if catalog.find(ROOT, job).name != job] == []


def test_every_query_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("completions", "expirations"):
        delta.create(spark, str(tmp_path / "out" / name), TABLES[name])
    (sql,) = _blocks(README, "sql")
    queries = [query.replace("`out/", f"`{tmp_path}/out/") for query in sql.split(";") if query.strip()]
    assert [spark.sql(query).collect() for query in queries] == [[]] * len(queries)

    (snippet,) = _blocks((ROOT / "notebooks" / "README.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "notebooks/README.md", "exec"), {})
