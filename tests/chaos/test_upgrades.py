"""What an earlier version has left: this one goes on with it, or says in one sentence that it cannot; its tables are
read either way."""

from __future__ import annotations

import json
import tarfile
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from jobs import audit, metrics, report
from purgatory_udf.backend.dialect import locally
from purgatory_udf.backend.local.session import LocalSession
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import job
from purgatory_udf.storage import run_records
from purgatory_udf.storage.run_records import FINISHED
from purgatory_udf.streaming import status_file
from purgatory_udf.streaming.replay_options import ReplayOptions
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import FORMATS
from purgatory_udf.streaming.state_inspection import inspect
from tests.generate import interrupted_output
from tests.streaming.followed import TABLES, append, caught_up, portions, rows, trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The output in a place of its own, where it was not made."""
    return _unpacked(interrupted_output.FOLLOWED, tmp_path)


@pytest.fixture
def kept_here(tmp_path: Path) -> Path:
    """Of a replay without Spark."""
    return _unpacked(interrupted_output.HERE, tmp_path)


def _unpacked(file: Path, place: Path) -> Path:
    with tarfile.open(file) as packed:
        packed.extractall(place, filter="data")
    return place


# What becomes of the kept runs in this version. Who changes a format says so here: they are refused then, until they
# are made anew, and gone on with again.
GOES_ON: bool = True


def _goes_on(kept: Path) -> bool:
    """Whether it is of the same formats; no other may be gone on with."""
    formats = json.loads((kept / interrupted_output.MADE).read_text())["formats"]
    assert (formats == FORMATS) == GOES_ON, f"it is of {formats}, this version's are {FORMATS}"
    return GOES_ON


def _is_open(spark: SparkSession, out: Path) -> None:
    """What waits for the rest of the trace, asked while the replay goes on."""
    opened = status_file.read(str(out))["partitions"].groups["broker-0"]["open"]
    assert opened > 0
    assert inspect(spark, str(out), 10).open >= opened


def _followed_on(spark: SparkSession, kept: Path) -> list[BaseException]:
    """The same command is given, and the rest of the trace comes; what it died of."""
    died: list[BaseException] = []

    def run() -> None:
        try:
            run_replay(spark, ReplayOptions(str(kept / "events"), str(kept), interrupted_output.BY_BROKER, follow=True))
        except BaseException as error:
            died.append(error)

    replay = threading.Thread(target=run)
    replay.start()
    while len(spark.streams.active) < 2 and replay.is_alive():
        replay.join(0.1)
    if spark.streams.active:
        _is_open(spark, kept)
    for part in portions(trace())[1:]:
        append(spark, kept, part)
    with suppress(StreamingQueryException):
        caught_up(spark)
    for query in spark.streams.active:
        query.stop()
    replay.join()
    return died


def test_an_interrupted_replay_of_an_earlier_version_goes_on_or_is_refused_in_one_sentence(
    spark: SparkSession, kept: Path
) -> None:
    out = kept
    before = {name: DeltaTable(str(out / name)).to_pyarrow_table().num_rows for name in TABLES}
    assert min(before.values()) > 0
    died = _followed_on(spark, kept)
    if _goes_on(kept):
        assert died == []
        _is_whole(out)
    else:
        _is_refused(out, died)
        assert {name: DeltaTable(str(out / name)).to_pyarrow_table().num_rows for name in TABLES} == before


def _is_refused(out: Path, died: list[BaseException]) -> None:
    ((sentence, status),) = map(job.describe_failure, died)
    assert status == job.USER_ERROR
    assert sentence.startswith(f"{out}: the interrupted run keeps its state in other formats than this version (")
    assert sentence.endswith("): finish it with the version that began it, or start it anew with --overwrite")


@pytest.mark.parametrize(
    "by_spark", [pytest.param(False, id="without Spark"), pytest.param(True, id="by Spark", marks=pytest.mark.spark)]
)
def test_a_replay_that_was_interrupted_without_spark_goes_on_either_way_or_is_refused(
    request: pytest.FixtureRequest, kept_here: Path, by_spark: bool
) -> None:
    died: list[BaseException] = []
    options = ReplayOptions(str(kept_here / "events"), str(kept_here), interrupted_output.BY_BROKER)
    with nullcontext() if by_spark else locally():
        session: Any = request.getfixturevalue("spark") if by_spark else LocalSession()
        try:
            assert run_replay(session, options).status == FINISHED
        except UserError as error:
            died.append(error)
    if _goes_on(kept_here):
        assert died == []
        _is_whole(kept_here)
    else:
        _is_refused(kept_here, died)


def _is_whole(out: Path) -> None:
    """As the same replay leaves it that nobody interrupts."""
    with locally():
        here: Any = LocalSession()
        run_replay(here, ReplayOptions(str(out / "events"), str(out / "whole"), interrupted_output.BY_BROKER))
    for name in TABLES:
        assert rows(out, name).num_rows > 0, name
        assert rows(out, name) == rows(out / "whole", name), name


def test_an_interrupted_run_of_other_formats_is_refused_and_a_finished_one_is_left_as_it_is(kept_here: Path) -> None:
    with locally():
        here: Any = LocalSession()
        record = f"{kept_here}/runs"
        run = run_records.load(here, record, "replay")
        assert run is not None and run.status == run_records.RUNNING
        for name, number in FORMATS.items():
            formats = {**FORMATS, name: number - 1}
            other = replace(run, configuration={**run.configuration, "formats": formats})
            run_records.save(here, record, other)
            options = ReplayOptions(f"{kept_here}/events", str(kept_here), interrupted_output.BY_BROKER)
            with pytest.raises(UserError, match=rf"in other formats than this version \({name} {number - 1}\)") as died:
                run_replay(here, options)
            _is_refused(kept_here, [died.value])
            assert not (kept_here / "expirations").exists()
        run_records.save(here, record, other.finished({}))
        assert run_replay(here, options).status == FINISHED
        assert not (kept_here / "expirations").exists()


def test_tables_of_an_earlier_version_are_read(
    without_spark: SparkSession, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(kept)
    assert audit.main.status(["--out", out]) == 0, capsys.readouterr().err
    assert metrics.main.status(["--out", out]) == 0, capsys.readouterr().err
    assert report.main.status(["--out", out]) == 0, capsys.readouterr().err
    assert (kept / "report.html").stat().st_size > 10_000
    assert "Traceback" not in capsys.readouterr().err
