"""Markers, the order of tests, and fixtures that all tests can use, such as the Spark session of a process."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.backend import spark_workers
from purgatory_udf.common import secrets
from purgatory_udf.launch import jvm
from tests.support import browser, scheduling, small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.backend.backend import Backend, Session

# Creating a class archive takes longer than the commands that tests run.
os.environ[jvm.DISABLE_VARIABLE] = "1"

# Traces are some hundred thousand objects that stay. Scanning them with the default thresholds takes a fifth of the
# test time.
gc.set_threshold(100_000, 50, 50)

# Tests that use one of these fixtures get the marker.
_MARKERS = {"spark": pytest.mark.spark, "bootstrap": pytest.mark.kafka}

# Folders with tests that start separate JVMs, as commands.
_COMMAND_FOLDERS = (scheduling.SECOND, "cluster")

_JVM_OPTIONS = "spark.driver.extraJavaOptions"
# Settings for tiny tables: adaptive execution does not pay off, and a large young generation saves garbage collections.
# Hash tables of broadcast joins, which live as long as the data frame of a test, start with a page of 32 MB by default.
_TEST_SETTINGS = {
    _JVM_OPTIONS: f"{small_spark.SETTINGS[_JVM_OPTIONS]} -Xmn320m",
    "spark.buffer.pageSize": "1m",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.python.daemon.module": spark_workers.__name__,
}


def pytest_configure(config: pytest.Config) -> None:
    """Let imports and predictions work in one process: pytest-xdist's processes use both cores already.

    Forks of these processes are costly, and a new process imports for longer than it simulates.
    """
    from purgatory_udf.backend import process_pool

    if hasattr(config, "workerinput") and config.option.markexpr != "nightly":
        process_pool.available_cores = lambda: 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their fixtures, put slow files first, and deselect tests whose program is not installed."""
    has_prometheus = shutil.which("prometheus") and shutil.which("promtool")
    for marker, program in (("browser", browser.find_browser()), ("prometheus", has_prometheus)):
        if not program:
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
    for item in items:
        fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
        for name in _MARKERS.keys() & {*fixtures}:
            item.add_marker(_MARKERS[name])
    long_files = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: _rank(item, long_files))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return scheduling.PROCESSES


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.FileScheduling:
    return scheduling.FileScheduling(config, log)


def _rank(item: pytest.Item, long_files: set[Path]) -> int:
    """Return the place of a test: those with the Spark session, then commands, files with long tests, and others."""
    folder = item.path.parent.name
    if item.get_closest_marker("spark") and folder not in _COMMAND_FOLDERS:
        return 0
    if folder in _COMMAND_FOLDERS:
        return 1 + _COMMAND_FOLDERS.index(folder)
    return 3 if item.path in long_files else 4


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of the process: two local cores, settings for small jobs, temporary folders."""
    from purgatory_udf.launch.spark_session import build_session

    scratch: Path = tmp_path_factory.mktemp("spark")
    session = build_session(
        "tests",
        {
            "spark.master": "local[2]",
            **small_spark.SETTINGS,
            **_TEST_SETTINGS,
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch / "local"),
        },
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_running_queries(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the streaming queries that a failed test left running: later tests would wait for them."""
    if "spark" not in request.fixturenames:
        yield
        return
    streams = request.getfixturevalue("spark").streams
    # Fixtures of modules were set up before.
    before = {query.id for query in streams.active}
    yield
    for query in streams.active:
        if query.id not in before:
            query.stop()


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets of earlier tests, which the process would otherwise redact until it exits."""
    monkeypatch.setattr(secrets, "_known_secrets", set())


@pytest.fixture(
    scope="session",
    params=["in process", pytest.param("on spark", marks=[pytest.mark.spark, pytest.mark.nightly])],
)
def session(request: pytest.FixtureRequest) -> Session:
    """The backend of this process; in `.ci/nightly` the Spark session."""
    from purgatory_udf.backend.backend import LocalBackend

    chosen: Session = request.getfixturevalue("spark") if request.param == "on spark" else LocalBackend()
    return chosen


@pytest.fixture
def without_spark() -> Backend:
    """The backend of this process."""
    from purgatory_udf.backend.backend import LocalBackend

    return LocalBackend()
