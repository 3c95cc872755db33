"""A question to the same tables, answered by Spark and without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from purgatory_udf.backend.dialect import locally
from purgatory_udf.launch.job import Job


class Answer:
    def __init__(self, out: Path, job: Job, arguments: list[str], said: pytest.CaptureFixture[str]) -> None:
        words = [word.replace("OUT", str(out)) for word in arguments]
        assert job.status(["--out", str(out), *words]) == 0
        self.said = said.readouterr().out
        self.files = {file.name: file.read_text() for file in [*out.glob("*.html"), *out.glob("*.prom")]}
        self.tables = dict(_answer_tables(out))


def _answer_tables(out: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Tables of answers. Only that of fidelity has no order."""
    for log in sorted(out.rglob("_delta_log")):
        name = log.parent.relative_to(out).as_posix()
        rows = DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()
        yield name, sorted(rows, key=repr) if name == "fidelity" else rows


def answer_twice(out: Path, place: Path, job: Job, words: list[str], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Each time of the same tables, in the same place."""
    answers = []
    for how in (nullcontext(), locally()):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(out, place, ignore=shutil.ignore_patterns("metrics", "_report", "fidelity", "*.html", "*.prom"))
        capsys.readouterr()
        with how:
            answers.append(Answer(place, job, words, capsys))
    theirs, ours = answers
    assert ours.said == theirs.said and ours.said
    assert ours.files == theirs.files
    assert ours.tables == theirs.tables
    return ours
