"""One Spark session for all tests of a process that need one; everything else runs without a JVM."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.common import secrets
from purgatory_udf.launch import class_archive
from tests.support import browser, scheduling, small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Commands that tests run start a Spark each, and are over before an archive of its classes was worth making.
os.environ[class_archive.DISABLE_VARIABLE] = "1"

# Traces and recordings are some hundred thousand objects that stay; by default Python looks through them all again and
# again, for a fifth of the time.
gc.set_threshold(100_000, 50, 50)

# What takes longest is begun first, so that no process is left alone with it at the end.
_LONG_FIRST = (
    "streaming",
    "request_log",
    "kafka",
    "cluster",
    "groups",
    "launch",
    "trace_files",
    "answers",
    "simulation",
)
_THEN = (scheduling.WITHOUT_JVM, "request_log", "timeline")


_JVM = "spark.driver.extraJavaOptions"
# Tests' tables are hardly there: nothing that is learnt of them on the way would make a plan better. And a session that
# lives for hundreds of tests is spared collections by room for what is soon gone.
_SMALLEST = {
    _JVM: f"{small_spark.SETTINGS[_JVM]} -Xmn320m",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.python.daemon.module": "tests.support.spark_worker_daemon",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever asks for the session is marked by it, and then what is long, or runs a whole command: `-m "not spark"` is
    what one waits for between two changes. What looks at a page in a browser runs where there is one."""
    if browser.find_browser() is None:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("browser")])
        items[:] = [item for item in items if not item.get_closest_marker("browser")]
    for item in items:
        asked: tuple[str, ...] = getattr(item, "fixturenames", ())
        if "spark" in asked:
            item.add_marker(pytest.mark.spark)
    items.sort(key=_rank)
    for item in items:
        if item.get_closest_marker("long") or item.get_closest_marker("end_to_end"):
            item.add_marker(pytest.mark.spark)
    scheduling.lower_priority()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return scheduling.process_count(config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.FileScheduling:
    return scheduling.FileScheduling(config, log)


def _rank(item: pytest.Item) -> int:
    """First what starts a JVM, or other processes, then all else."""
    slow = item.get_closest_marker("spark") or item.get_closest_marker("end_to_end")
    order, before = (_LONG_FIRST, 0) if slow else (_THEN, len(_LONG_FIRST) + 1)
    folder = item.path.parent.name
    return before + (order.index(folder) if folder in order else len(order))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the settings of small jobs, UTC, Delta, and no UI; its scratch files are the tests' own."""
    from purgatory_udf.launch.spark_session import build_session

    scratch: Path = tmp_path_factory.mktemp("spark")
    session = build_session(
        "tests",
        {
            "spark.master": "local[2]",
            **small_spark.SETTINGS,
            **_SMALLEST,
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch / "local"),
        },
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process hides the secrets that it was told for as long as it lives, whichever test told them."""
    monkeypatch.setattr(secrets, "_known_secrets", set())


@pytest.fixture
def without_spark() -> Iterator[SparkSession]:
    """What stands for Spark's session, while the test lasts; other tests hold its answers to Spark's."""
    from purgatory_udf.backend.dialect import locally
    from purgatory_udf.launch.spark_session import session_for

    with locally():
        yield session_for("tests")
