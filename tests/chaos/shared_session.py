"""Runs commands in one Spark session, because starting a JVM for each would take most of the time."""

from __future__ import annotations

import importlib
import io
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch.backend_choice import OpenBackend, open_local
from tests.chaos.killed_commands import Command, differences
from tests.support import small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_START_TIMEOUT_S = 60


class SharedSession:
    """A Spark session in which jobs are called directly."""

    def __init__(self, folder: Path, kafka: bool = False) -> None:
        from purgatory_udf.launch.spark_session import build_session

        # Keep the session's files out of the folders of commands.
        scratch = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
        self._spark: SparkSession = build_session(
            "crashes", {"spark.master": "local[2]", **small_spark.SETTINGS, **scratch}
        )
        self._audits: dict[Path, list[str]] = {}
        if kafka:
            from purgatory_udf.sources.kafka_topic import add_connector

            add_connector(self._spark)

    def finish(self, command: Command, out: Path, without_spark: bool = False) -> str:
        """Repeat the command until it has finished, and return its error, or an empty text."""
        words = [*command.words, "--out", str(out)]
        if command.follows:
            return self._run_following(command, words)
        status, output = _run_locally(words) if without_spark else _run_job(words)
        # An import that had finished before the kill refuses to run again.
        finished = status == 2 and "exists; choose another --out" in output
        return "" if status == 0 or finished else f"exit status {status}: {output}"

    def compare(self, command: Command, whole: Path, out: Path) -> list[str]:
        """Return the differences from the undisturbed run, and the invariants that `audit` finds violated.

        Invariants depend on the tables only: if these are equal, only the undisturbed run is audited, once.
        """
        problems = differences(command, whole, out)
        if command.audited:
            audited = out if problems else whole
            if audited not in self._audits:
                status, output = _run_job(["audit", "--out", str(audited)])
                self._audits[audited] = [] if status == 0 else [f"audit: {output}"]
            problems += self._audits[audited]
        return problems

    def _run_following(self, command: Command, words: list[str]) -> str:
        """Run a command that follows until it has processed all input, including further portions."""
        results: list[tuple[int, str]] = []
        thread = threading.Thread(target=lambda: results.append(_run_job(words)))
        thread.start()
        try:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while not self._spark.streams.active and not results and time.monotonic() < deadline:
                time.sleep(0.1)
            while not results:
                # A query may read what another one writes.
                for _ in range(3):
                    for query in self._spark.streams.active:
                        query.processAllAvailable()
                if not command.feed():
                    break
        except Exception as error:
            return f"a query failed: {error}"
        finally:
            for query in self._spark.streams.active:
                query.stop()
            thread.join()
        return "" if results[0][0] in (0, 130) else f"exit status {results[0][0]}: {results[0][1]}"


def _run_locally(words: list[str]) -> tuple[int, str]:
    """Run the job without Spark if it can, else with Spark."""
    try:
        return run_without_spark(words)
    except NeedsSparkError:
        return _run_job(words)


def run_without_spark(words: list[str]) -> tuple[int, str]:
    """Run a job without Spark; raises NeedsSparkError if it cannot."""
    return _run_job(words, open_local)


def _run_job(words: list[str], open_backend: OpenBackend | None = None) -> tuple[int, str]:
    """Run a job and return its exit status and output."""
    job = importlib.import_module(f"jobs.{words[0].replace('-', '_')}").main
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        return job.status(words[1:], open_backend), output.getvalue()
