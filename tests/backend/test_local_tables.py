"""Jobs run without Spark if their tables are small, local and readable, else in Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pytest
import typer

from jobs import metrics
from purgatory_udf.backend.local_delta import LocalDelta, create_with_files, needing_spark
from purgatory_udf.backend.sql_database import DuckDatabase
from purgatory_udf.common import local_files
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.launch import backend_choice
from purgatory_udf.launch import job as job_module
from purgatory_udf.launch.backend_choice import open_local, runs_in_process
from tests.support.outcome_folder import sample_with_group, write_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("near") / "out"
    write_folder(out, sample_with_group())
    return out


def _submit(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command with further environment variables."""
    return subprocess.run(
        [ROOT / "spark-submit.sh", *words], capture_output=True, text=True, env=os.environ | environ, check=False
    )


def test_small_local_tables_are_read_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    (tmp_path / "some").write_text("rows")
    assert local_files.is_small_and_local([str(tmp_path), f"file://{tmp_path}"], backend_choice.ANY_BYTES)
    assert not local_files.is_small_and_local([str(tmp_path), "s3a://bucket/out"], backend_choice.ANY_BYTES)
    assert not local_files.is_small_and_local([f"{tmp_path}/nothing"], backend_choice.ANY_BYTES)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert not local_files.is_small_and_local([str(tmp_path)], backend_choice.ANY_BYTES)


@pytest.mark.parametrize("name", ["a[1]", "b*", "c?", "d%20e f"])
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_tables_of_any_local_name_are_read_in_process(tmp_path: Path, scheme: str, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "some").write_text("rows")
    path = f"{scheme}{tmp_path / name}"
    assert local_files.is_small_and_local([path], backend_choice.ANY_BYTES)
    assert local_files.is_small_and_local([path], 4)
    assert not local_files.is_small_and_local([path], 3)


def test_large_tables_are_not_read_in_process(tmp_path: Path) -> None:
    with (tmp_path / "part.parquet").open("wb") as file:
        file.truncate(100_000_001)
    assert not local_files.is_small_and_local([str(tmp_path)], backend_choice.REPLAYED_BYTES)
    assert local_files.is_small_and_local([str(tmp_path)], backend_choice.ANY_BYTES)


@pytest.fixture(scope="module")
def no_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A JAVA_HOME with a Java that fails, which shows whether a command starts Spark."""
    home = tmp_path_factory.mktemp("java")
    (home / "bin").mkdir()
    (home / "bin" / "java").write_text("#!/bin/sh\necho no java >&2\nexit 9\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return str(home)


def test_small_tables_need_no_java(folder: Path, tmp_path: Path, no_java: str) -> None:
    without_spark = _submit("metrics", "--out", str(folder), JAVA_HOME=no_java)
    assert without_spark.returncode == 0 and "no java" not in without_spark.stderr
    assert "Kafka's meters" in without_spark.stdout
    words = ("what-if", "--events", f"{folder}/events", "--out", str(tmp_path), "--variant", "a", "fetch.min_bytes=9")
    replays = _submit(*words, JAVA_HOME=no_java)
    assert replays.returncode == 0 and "no java" not in replays.stderr
    assert "a: " in replays.stdout
    # An option of Spark selects Spark.
    in_spark = _submit("--master", "local[1]", "metrics", "--out", str(folder), JAVA_HOME=no_java)
    assert in_spark.returncode != 0 and "no java" in in_spark.stderr


def test_job_that_needs_spark_restarts_in_spark(folder: Path, tmp_path: Path, no_java: str) -> None:
    words = ("replay", "--events", f"{folder}/events", "--out", str(tmp_path / "out"), "--set", "grouping=partition")
    in_spark = _submit(*words, JAVA_HOME=no_java)
    assert in_spark.returncode != 0 and "no java" in in_spark.stderr
    assert not (tmp_path / "out" / "runs").exists()


@pytest.mark.parametrize(("most", "local", "in_process"), [(100, True, True), (9, True, False), (100, False, False)])
def test_max_local_bytes_limits_local_jobs(tmp_path: Path, most: int, local: bool, in_process: bool) -> None:
    def run(out: Annotated[str, typer.Option()]) -> None:
        """Read tables."""

    (tmp_path / "rows").write_text("ten bytes.")
    job = job_module.Job(run, reads=("out",), max_local_bytes=most)
    assert job.check(["--out", str(tmp_path)], local) is None
    assert runs_in_process(job.inputs, [], most, spark_options=False, settings={}, environ={}) == in_process


def test_unknown_table_feature_needs_spark(tmp_path: Path) -> None:
    """The table requires a reader feature that does not exist yet."""
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
    with pytest.raises(NeedsSparkError):
        metrics.main.status(["--out", str(tmp_path)], open_local)


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "[a]", "a^b", "a|b"])
def test_misread_folder_needs_spark(name: str, tmp_path: Path) -> None:
    """deltalake would read the table in `a b` instead of that in `a%20b`."""
    rows = pa.table({"id": [1]})
    LocalDelta().append(str(tmp_path / "a b"), rows)
    path = str(tmp_path / name / "table")
    for use in (LocalDelta().is_table, lambda path: LocalDelta().append(path, rows)):
        with pytest.raises(NeedsSparkError, match="deltalake cannot open a path with"):
            use(path)
    assert [each.name for each in tmp_path.iterdir()] == ["a b"]


def test_damaged_log_is_named_without_spark(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message has the whole path, although a relative one is given; its folder has a quote, a space and a comma."""
    tmp_path /= "it's a, b"
    shutil.copytree(folder, tmp_path / "out")
    commit = tmp_path / "out" / "completions" / "_delta_log" / f"{0:020}.json"
    commit.write_text('{"commitInfo": {"x')
    monkeypatch.chdir(tmp_path)
    assert LocalDelta().is_table("out/completions")
    assert metrics.main.status(["--out", "out"], open_local) == 3
    assert capsys.readouterr().err.startswith(f"metrics: {commit} is missing or damaged; restore it from a backup, or")


def test_newer_protocol_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A later commit that requires it, and a first commit whose checksum file has another protocol."""
    write_folder(tmp_path, sample_with_group())
    newer = json.dumps({"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}) + "\n"
    log = tmp_path / "completions" / "_delta_log"
    (log / f"{len(list(log.glob('*.json'))):020}.json").write_text(newer)
    assert metrics.main.status(["--out", str(tmp_path)], open_local) == 2
    create_with_files([pa.table({"n": [1]})], f"{tmp_path}/t", [], {}, pa.schema([("n", pa.int64())]))
    first = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    assert first.with_suffix(".crc").exists()
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(newer if '"protocol"' in line else line for line in lines))
    with pytest.raises(UserError) as refused:
        DuckDatabase().add_table("t", f"{tmp_path}/t")
    errors = [f"{capsys.readouterr().err}".removeprefix("metrics: ").rstrip(), str(refused.value)]
    assert errors == [
        f"{tmp_path}/{name}: requires version 99 of Delta's reader protocol, newer than 3; read the table with the "
        "program that wrote it"
        for name in ("completions", "t")
    ]


def test_remote_events_need_spark(tmp_path: Path) -> None:
    write_folder(tmp_path, sample_with_group(), events_path="s3a://bucket/events")
    with pytest.raises(NeedsSparkError, match="s3a://bucket/events: is not on this machine"):
        metrics.main.status(["--out", str(tmp_path)], open_local)


def test_unreadable_table_is_not_missing(tmp_path: Path) -> None:
    write_folder(tmp_path, sample_with_group())
    (tmp_path / "completions" / "_delta_log").chmod(0)
    user = os.geteuid()
    if not user:
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            LocalDelta().table_at(f"{tmp_path}/completions")
    finally:
        os.seteuid(user)
        (tmp_path / "completions" / "_delta_log").chmod(0o755)


def test_full_disk_is_no_reason_for_spark() -> None:
    for error in (OSError(28, "No space left on device"), PermissionError(13, "Permission denied")):
        with pytest.raises(OSError, match=error.strerror), needing_spark():
            raise error
    with pytest.raises(NeedsSparkError), needing_spark():
        raise OSError(5, "Input/output error")
