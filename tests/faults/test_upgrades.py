"""What an earlier version has left: this one goes on with it, or says in one sentence that it cannot; its tables are
read either way."""

from __future__ import annotations

import json
import tarfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from jobs import audit, metrics, report
from purgatory_udf import cli
from purgatory_udf.stream.asked import FORMATS
from purgatory_udf.stream.options import ReplayOptions
from purgatory_udf.stream.replay import run_replay
from tests import kept_output
from tests.stream.followed import TABLES, append, caught_up, portions, rows, trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The output in a place of its own, where it was not made."""
    with tarfile.open(kept_output.FILE) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


def _followed_on(spark: SparkSession, kept: Path) -> list[BaseException]:
    """The rest of the trace comes, and the same command is given; what it died of."""
    died: list[BaseException] = []

    def run() -> None:
        try:
            run_replay(spark, ReplayOptions(str(kept / "events"), str(kept), kept_output.BY_BROKER, follow=True))
        except BaseException as error:
            died.append(error)

    for part in portions(trace())[1:]:
        append(spark, kept, part)
    replay = threading.Thread(target=run)
    replay.start()
    while len(spark.streams.active) < 2 and replay.is_alive():
        replay.join(0.1)
    with suppress(StreamingQueryException):
        caught_up(spark)
    for query in spark.streams.active:
        query.stop()
    replay.join()
    return died


def test_an_interrupted_replay_of_an_earlier_version_goes_on_or_is_refused_in_one_sentence(
    spark: SparkSession, kept: Path
) -> None:
    out, made = kept, json.loads((kept / kept_output.MADE).read_text())
    before = {name: DeltaTable(str(out / name)).to_pyarrow_table().num_rows for name in TABLES}
    assert min(before.values()) > 0
    died = _followed_on(spark, kept)
    if made["formats"] == FORMATS:
        assert died == []
        run_replay(spark, ReplayOptions(str(kept / "events"), str(kept / "whole"), kept_output.BY_BROKER))
        for name in TABLES:
            assert rows(out, name) == rows(kept / "whole", name), name
    else:
        ((sentence, status),) = map(cli.explain, died)
        assert status == cli.MISTAKE
        assert sentence.startswith(f"{out}: the interrupted run keeps its state in other formats than this version (")
        assert sentence.endswith("): finish it with the version that began it, or start it anew with --overwrite")
        assert {name: DeltaTable(str(out / name)).to_pyarrow_table().num_rows for name in TABLES} == before


def test_tables_of_an_earlier_version_are_read(
    spark: SparkSession, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(kept)
    assert audit.main.status(["--out", out]) == 0, capsys.readouterr().err
    assert metrics.main.status(["--out", out]) == 0, capsys.readouterr().err
    assert report.main.status(["--out", out]) == 0, capsys.readouterr().err
    assert (kept / "report.html").stat().st_size > 10_000
    assert "Traceback" not in capsys.readouterr().err
