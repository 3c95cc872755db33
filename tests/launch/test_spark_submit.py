"""The product's own command line, from a folder that is not the tree's, with a blank in its name."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import small_spark

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    return folder


def _submit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # As from a shell: nothing of this process's own session may reach the new one.
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK_", "JAVA_HOME"))
    }
    command = [str(ROOT / "spark-submit.sh"), *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_help_lists_every_job(folder: Path) -> None:
    done = _submit(folder, "--help")
    listed = re.findall(r"^  ([a-z-]+)  +\S", done.stdout.partition("Jobs:\n")[2], re.MULTILINE)
    files = sorted(file.stem.rstrip("_").replace("_", "-") for file in (ROOT / "jobs").glob("[!_]*.py"))
    assert (done.returncode, done.stderr, listed) == (0, "", files)


def test_an_unknown_job_and_an_unknown_option_end_with_status_2(folder: Path) -> None:
    unknown = _submit(folder, "--master", "local[1]", "adit")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr == "spark-submit.sh: adit: unknown job (did you mean audit?)\n"
    option = _submit(folder, "audit", "--outt", "x")
    assert (option.returncode, option.stdout) == (2, "")
    assert "No such option: --outt" in option.stderr


@pytest.mark.spark
def test_an_audit_of_nothing_is_one_line_and_status_2(folder: Path) -> None:
    missing = _submit(folder, "audit", "--out", "nowhere")
    assert (missing.returncode, missing.stdout, missing.stderr) == (2, "", "audit: nowhere: no such folder\n")
    (folder / "nothing here").mkdir()
    empty = _submit(folder, *small_spark.WORDS, "audit", "--out", "nothing here")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr == "audit: nothing here: no replay is recorded in nothing here/runs\n"


@pytest.mark.spark
def test_alone_it_shows_the_demo(folder: Path) -> None:
    done = _submit(folder)
    assert done.returncode == 0, done.stderr
    # What differs between two runs, and nothing else, is written as a letter.
    shown = done.stdout.replace(str(folder), "FOLDER")
    shown = re.sub(r"Run run-[0-9a-f]{12}", "Run R", re.sub(r" in [\d.]+ s\b", " in S s", shown))
    assert shown == (Path(__file__).parent / "demo.golden.txt").read_text(encoding="utf-8")
    # Our own log lines begin with the time; Spark says nothing.
    assert [line for line in done.stderr.splitlines() if not re.match(r"\d\d:\d\d:\d\d (?!WARN|ERROR)", line)] == []
    assert (folder / "demo" / "waits.svg").read_text(encoding="utf-8").startswith("<svg")
    assert sorted(entry.name for entry in folder.iterdir()) == ["demo"]
