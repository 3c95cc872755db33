"""What the README and the notebooks' README show works on tables as this version makes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import write_deltalake

from purgatory_udf.launch import catalog, command_line
from purgatory_udf.tables import TABLES

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


def test_the_notebooks_readme_reads_a_table_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(str(tmp_path / "out" / "expirations"), TABLES["expirations"].empty_table())
    (snippet,) = _blocks((ROOT / "notebooks" / "README.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "notebooks/README.md", "exec"), {})
