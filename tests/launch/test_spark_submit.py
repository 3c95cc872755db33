"""The command line as a user runs it, from another folder with a blank in its name."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import small_spark

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    return folder


def _submit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # As from a shell: variables of this process's Spark session are removed.
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK_", "JAVA_HOME"))
    }
    command = [str(ROOT / "spark-submit.sh"), *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_help_lists_every_job_file(folder: Path) -> None:
    done = _submit(folder, "--help")
    listed = re.findall(r"^  ([a-z-]+)  +\S", done.stdout.partition("Jobs:\n")[2], re.MULTILINE)
    files = sorted(file.stem.rstrip("_").replace("_", "-") for file in (ROOT / "jobs").glob("[!_]*.py"))
    assert (done.returncode, done.stderr, listed) == (0, "", files)


def test_unknown_job_or_option_returns_two(folder: Path) -> None:
    unknown = _submit(folder, "--master", "local[1]", "adit")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr == "spark-submit.sh: adit: unknown job (did you mean audit?)\n"
    option = _submit(folder, "audit", "--outt", "x")
    assert (option.returncode, option.stdout) == (2, "")
    assert "No such option: --outt" in option.stderr


def test_unusual_standard_streams_are_no_failure(folder: Path) -> None:
    """All streams closed, as under some schedulers; and an encoding that lacks a character of the output."""
    script = f'"{ROOT}/spark-submit.sh"'
    closed = subprocess.run(["bash", "-c", f"{script} audit --help <&- >&- 2>&-"], cwd=folder, check=False)
    assert closed.returncode == 0
    help_in_ascii = ["bash", "-c", f"PYTHONIOENCODING=ascii {script} --help"]
    done = subprocess.run(help_in_ascii, cwd=folder, capture_output=True, text=True, check=True)
    assert r"JOB \u2026" in done.stdout


@pytest.mark.nightly
@pytest.mark.spark
def test_audit_of_missing_output_returns_two(folder: Path) -> None:
    missing = _submit(folder, "audit", "--out", "nowhere")
    error = "audit: nowhere: no such folder; --out names the folder of a replay\n"
    assert (missing.returncode, missing.stdout, missing.stderr) == (2, "", error)
    (folder / "nothing here").mkdir()
    empty = _submit(folder, *small_spark.ARGUMENTS, "audit", "--out", "nothing here")
    assert (empty.returncode, empty.stdout) == (2, "")
    error = "audit: nothing here: no replay is recorded in nothing here/runs; run replay with this --out first\n"
    # With an empty home, the launcher fetches Delta Lake first.
    assert re.sub(r"\A\[spark-submit\.sh\] Fetching .*\n", "", empty.stderr) == error


@pytest.mark.spark
@pytest.mark.long
def test_without_job_the_demo_runs(folder: Path) -> None:
    done = _submit(folder)
    assert done.returncode == 0, done.stderr
    # Replace the parts that differ between two runs.
    shown = done.stdout.replace(str(folder), "FOLDER")
    shown = re.sub(r"run-[0-9a-f]{12}", "R", re.sub(r" in [\d.]+ s\b", " in S s", shown))
    assert shown == (Path(__file__).parent / "demo.golden.txt").read_text(encoding="utf-8")
    # Our log lines start with the time; Spark logs nothing. The first test of a machine fetches the jars.
    expected = re.compile(r"\d\d:\d\d:\d\d (?!WARN|ERROR)|\[spark-submit\.sh\] Fetching ")
    assert [line for line in done.stderr.splitlines() if not expected.match(line)] == []
    assert (folder / "demo" / "waits.svg").read_text(encoding="utf-8").startswith("<svg")
    assert sorted(entry.name for entry in folder.iterdir()) == ["demo"]
