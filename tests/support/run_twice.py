"""Run a job on the same tables with Spark and without it, and compare the results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from purgatory_udf.launch.backend_choice import OpenBackend, open_local
from purgatory_udf.launch.job import Job

_UNORDERED = ("fidelity", "blame")


class Answer:
    """The results of a job: standard output, pages, and tables."""

    output: str

    def __init__(self, out: Path, job: Job, arguments: list[str], open_backend: OpenBackend | None) -> None:
        words = [word.replace("OUT", str(out)) for word in arguments]
        assert job.status(["--out", str(out), *words], open_backend) == 0
        self.files = {file.name: file.read_text() for file in [*out.glob("*.html"), *out.glob("*.prom")]}
        self.tables = dict(_answer_tables(out))


def _answer_tables(out: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield every table below the folder, and sort those without a defined order."""
    for log in sorted(out.rglob("_delta_log")):
        name = log.parent.relative_to(out).as_posix()
        rows = DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()
        yield name, sorted(rows, key=repr) if name in _UNORDERED else rows


def answer_twice(out: Path, place: Path, job: Job, words: list[str], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Run the job twice, with and without Spark, on a fresh copy of the tables in `place`."""
    answers = []
    for open_backend in (None, open_local):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(out, place, ignore=shutil.ignore_patterns("metrics", "_report", "fidelity", "*.html", "*.prom"))
        capsys.readouterr()
        answer = Answer(place, job, words, open_backend)
        answer.output = capsys.readouterr().out
        answers.append(answer)
    by_spark, local = answers
    assert local.output == by_spark.output and local.output
    assert local.files == by_spark.files
    assert local.tables.keys() == by_spark.tables.keys()
    for name, rows in local.tables.items():
        assert rows == by_spark.tables[name], name
    return local
