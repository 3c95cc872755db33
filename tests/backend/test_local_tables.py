"""When answers are given without Spark: where tables are small and near, and can be read; else Spark is asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Annotated

import pytest
import typer

from jobs import metrics
from purgatory_udf.backend import input_size
from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.backend.dialect import locally
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch import job as job_module
from tests.support.outcome_folder import sample_with_group, write_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("near") / "out"
    write_folder(out, sample_with_group())
    return out


def _submit(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """With a Java that fails at once, so that whoever needs Spark is told so."""
    return subprocess.run(
        [ROOT / "spark-submit.sh", *words], capture_output=True, text=True, env=os.environ | environ, check=False
    )


def test_small_tables_are_near_unless_they_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    (tmp_path / "some").write_text("rows")
    assert input_size.is_near([str(tmp_path), f"file://{tmp_path}"], input_size.ANSWERED_BYTES)
    assert not input_size.is_near([str(tmp_path), "s3a://bucket/out"], input_size.ANSWERED_BYTES)
    assert not input_size.is_near([f"{tmp_path}/nothing"], input_size.ANSWERED_BYTES)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert not input_size.is_near([str(tmp_path)], input_size.ANSWERED_BYTES)


def test_large_tables_are_not_near(tmp_path: Path) -> None:
    with (tmp_path / "part.parquet").open("wb") as file:
        file.truncate(100_000_001)
    assert not input_size.is_near([str(tmp_path)], input_size.ANSWERED_BYTES)


@pytest.fixture(scope="module")
def no_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("java")
    (home / "bin").mkdir()
    (home / "bin" / "java").write_text("#!/bin/sh\necho no java >&2\nexit 9\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return str(home)


@pytest.mark.end_to_end
def test_an_answer_over_them_needs_no_java(folder: Path, no_java: str) -> None:
    answered = _submit("metrics", "--out", str(folder), JAVA_HOME=no_java)
    assert answered.returncode == 0 and "no java" not in answered.stderr
    assert "Kafka's meters" in answered.stdout
    # Who gives Spark an option wants Spark.
    asked = _submit("--master", "local[1]", "metrics", "--out", str(folder), JAVA_HOME=no_java)
    assert asked.returncode != 0 and "no java" in asked.stderr


@pytest.mark.end_to_end
def test_what_cannot_be_done_so_is_begun_again_in_spark(folder: Path, tmp_path: Path, no_java: str) -> None:
    words = ("replay", "--events", f"{folder}/events", "--out", str(tmp_path / "out"), "--set", "grouping=partition")
    asked = _submit(*words, JAVA_HOME=no_java)
    assert asked.returncode != 0 and "no java" in asked.stderr
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(("most", "local", "near"), [(100, True, True), (9, True, False), (100, False, False)])
def test_a_job_says_how_much_it_does_without_spark(tmp_path: Path, most: int, local: bool, near: bool) -> None:
    def run(out: Annotated[str, typer.Option()]) -> None:
        """Look at tables."""

    (tmp_path / "rows").write_text("of ten let")
    job = job_module.Job(run, reads=("out",), max_local_bytes=most)
    assert job.check(["--out", str(tmp_path)], local) is None
    assert job.runs_locally == near


def test_a_table_that_only_spark_reads_is_left_to_spark(tmp_path: Path) -> None:
    """It says that its readers must know deletion vectors of a kind to come."""
    write_folder(tmp_path, sample_with_group())
    log = tmp_path / "completions" / "_delta_log"
    feature = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["toCome"],
            "writerFeatures": ["toCome"],
        }
    }
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_text(json.dumps(feature) + "\n")
    with locally(), pytest.raises(NeedsSparkError):
        metrics.main.status(["--out", str(tmp_path)])


def test_events_that_lie_elsewhere_are_left_to_spark(tmp_path: Path) -> None:
    write_folder(tmp_path, sample_with_group(), events_path="s3a://bucket/events")
    with locally(), pytest.raises(NeedsSparkError, match="s3a://bucket/events: is not on this machine"):
        metrics.main.status(["--out", str(tmp_path)])


def test_a_function_that_only_spark_has_is_asked_of_spark() -> None:
    with locally(), pytest.raises(NeedsSparkError, match=r"functions\.soundex"):
        sf.soundex("name")
