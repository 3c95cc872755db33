"""Outputs of an older version: this version resumes the run or refuses it with one sentence, and reads the tables."""

from __future__ import annotations

import json
import tarfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from jobs import audit, metrics, report
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.storage import run_records
from purgatory_udf.storage.run_records import FINISHED
from purgatory_udf.streaming import status_file
from purgatory_udf.streaming.checkpoints import inspect
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import FORMATS, ReplayOptions
from tests.generate import interrupted_output
from tests.streaming.growing_table import (
    TABLES,
    all_queries_run,
    append_events,
    growing_trace,
    process_all_available,
    sorted_rows,
    split_trace,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


@pytest.fixture
def followed_output(tmp_path: Path) -> Path:
    """Output of a followed replay, in another folder than the original one."""
    return _unpacked(interrupted_output.FOLLOWED, tmp_path)


@pytest.fixture
def local_output(tmp_path: Path) -> Path:
    """Output of an interrupted replay without Spark."""
    return _unpacked(interrupted_output.LOCAL, tmp_path)


def _unpacked(file: Path, folder: Path) -> Path:
    with tarfile.open(file) as archive:
        archive.extractall(folder, filter="data")
    return folder


# Whether this version resumes the archived runs. Set it to False with a change of format, and to True when the archives
# are created again (`tests.generate.interrupted_output`).
RESUMES: bool = False


def _resumes(out: Path) -> bool:
    """Return whether the run has the formats of this version, which must agree with `RESUMES`."""
    formats = json.loads((out / interrupted_output.MANIFEST).read_text())["formats"]
    assert (formats == FORMATS) == RESUMES, f"the run has formats {formats}, this version has {FORMATS}"
    return RESUMES


def _assert_open_operations(spark: SparkSession, out: Path) -> None:
    """Check the operations that wait for the rest of the trace, during the replay."""
    opened = status_file.read_status_files(str(out))["partitions"].groups["broker-0"]["open"]
    assert opened > 0
    assert inspect(spark, str(out), 10).open >= opened


def _resume_following(spark: SparkSession, out: Path) -> list[BaseException]:
    """Repeat the command, append the rest of the trace, and return the errors of the replay."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            run_replay(spark, ReplayOptions(str(out / "events"), str(out), interrupted_output.BY_BROKER, follow=True))
        except BaseException as error:
            errors.append(error)

    replay = threading.Thread(target=run, daemon=True)
    replay.start()
    while not all_queries_run(spark) and replay.is_alive():
        replay.join(0.1)
    if spark.streams.active:
        _assert_open_operations(spark, out)
    for part in split_trace(growing_trace())[1:]:
        append_events(spark, out, part)
    with suppress(StreamingQueryException):
        process_all_available(spark)
    for query in spark.streams.active:
        query.stop()
    replay.join()
    return errors


@pytest.mark.nightly
def test_followed_replay_of_older_version_resumes(spark: SparkSession, followed_output: Path) -> None:
    out = followed_output
    before = {name: DeltaTable(str(out / name)).to_pyarrow_table().num_rows for name in TABLES}
    assert min(before.values()) > 0
    errors = _resume_following(spark, followed_output)
    if _resumes(followed_output):
        assert errors == []
        _assert_complete(out)
    else:
        _assert_refused(out, errors)
        assert {name: DeltaTable(str(out / name)).to_pyarrow_table().num_rows for name in TABLES} == before


def _assert_refused(out: Path, errors: list[BaseException]) -> None:
    ((sentence, status),) = map(job.describe_failure, errors)
    assert status == job.USER_ERROR
    assert sentence.startswith(f"{out}: the interrupted run has state in formats that this version cannot read (")
    assert sentence.endswith("): finish it with the version that started it, or restart it with --overwrite")


@pytest.mark.parametrize(
    "with_spark",
    [
        pytest.param(False, id="without Spark"),
        pytest.param(True, id="with Spark", marks=[pytest.mark.spark, pytest.mark.nightly]),
    ],
)
def test_local_replay_of_older_version_resumes(
    request: pytest.FixtureRequest, local_output: Path, with_spark: bool
) -> None:
    errors: list[BaseException] = []
    options = ReplayOptions(str(local_output / "events"), str(local_output), interrupted_output.BY_BROKER)
    session = request.getfixturevalue("spark") if with_spark else LocalBackend()
    try:
        assert run_replay(session, options).status == FINISHED
    except UserError as error:
        errors.append(error)
    if _resumes(local_output):
        assert errors == []
        _assert_complete(local_output)
    else:
        _assert_refused(local_output, errors)


def _assert_complete(out: Path) -> None:
    """Check that the tables equal those of an undisturbed replay."""
    session: Any = LocalBackend()
    run_replay(session, ReplayOptions(str(out / "events"), str(out / "whole"), interrupted_output.BY_BROKER))
    for name in TABLES:
        assert sorted_rows(out, name).num_rows > 0, name
        assert sorted_rows(out, name) == sorted_rows(out / "whole", name), name


def test_run_with_other_formats_is_refused(local_output: Path) -> None:
    session: Any = LocalBackend()
    record = f"{local_output}/runs"
    run = run_records.load(session, record, "replay")
    assert run is not None and run.status == run_records.RUNNING
    for name, number in FORMATS.items():
        formats = {**FORMATS, name: number - 1}
        other = replace(run, configuration={**run.configuration, "formats": formats})
        run_records.save(session, record, other)
        options = ReplayOptions(f"{local_output}/events", str(local_output), interrupted_output.BY_BROKER)
        with pytest.raises(
            UserError, match=rf"in formats that this version cannot read \({name} {number - 1}\)"
        ) as caught:
            run_replay(session, options)
        _assert_refused(local_output, [caught.value])
        assert not (local_output / "expirations").exists()
    run_records.save(session, record, other.finished({}))
    assert run_replay(session, options).status == FINISHED
    assert not (local_output / "expirations").exists()


def test_tables_of_older_version_are_read(followed_output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(followed_output)
    for reader in (audit, metrics, report):
        assert reader.main.status(["--out", out], open_local) == 0, capsys.readouterr().err
    assert (followed_output / "report.html").stat().st_size > 10_000
    assert "Traceback" not in capsys.readouterr().err
