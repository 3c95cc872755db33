"""Commands given again in one JVM, where starting one for each would be most of the work."""

from __future__ import annotations

import importlib
import io
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.backend.dialect import locally
from purgatory_udf.common.errors import NeedsSparkError
from tests.chaos.killing import Command, differences
from tests.support import small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STARTS_WITHIN_S = 60


class OneSession:
    def __init__(self, folder: Path, kafka: bool = False) -> None:
        from purgatory_udf.launch.spark_session import build_session

        # Nothing of a session lies where commands run.
        scratch = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
        self._spark: SparkSession = build_session(
            "crashes", {"spark.master": "local[2]", **small_spark.SETTINGS, **scratch}
        )
        self._lawful: dict[Path, list[str]] = {}
        if kafka:
            from purgatory_udf.sources.kafka.kafka_topic import add_connector

            add_connector(self._spark)

    def end(self, command: Command, out: Path, here: bool = False) -> str:
        """Give the command again, to its end, without Spark if it can do so `here`; what it said if it failed."""
        words = [*command.words, "--out", str(out)]
        if command.follows:
            return self._followed(command, words)
        status, said = _given_here(words) if here else _given(words)
        # Killed when all was done: an import is not made twice.
        made = status == 2 and "exists; choose another --out" in said
        return "" if status == 0 or made else f"it ended with {status}: {said}"

    def checked(self, command: Command, whole: Path, out: Path) -> list[str]:
        """What is otherwise than in the undisturbed run, and which laws are broken. Those are about these tables and
        `runs`: where all of them are the same, the answer is the undisturbed run's."""
        wrong = differences(command, whole, out)
        if command.audited:
            asked = out if wrong else whole
            if asked not in self._lawful:
                status, said = _given(["audit", "--out", str(asked)])
                self._lawful[asked] = [] if status == 0 else [f"audit: {said}"]
            wrong += self._lawful[asked]
        return wrong

    def _followed(self, command: Command, words: list[str]) -> str:
        """Until all that there is has gone through, and whatever else is fed."""
        ended: list[tuple[int, str]] = []
        running = threading.Thread(target=lambda: ended.append(_given(words)))
        running.start()
        try:
            give_up = time.monotonic() + _STARTS_WITHIN_S
            while not self._spark.streams.active and not ended and time.monotonic() < give_up:
                time.sleep(0.1)
            while not ended:
                # What one query writes another may read.
                for _ in range(3):
                    for query in self._spark.streams.active:
                        query.processAllAvailable()
                if not command.feed():
                    break
        except Exception as error:
            return f"a query ended: {error}"
        finally:
            for query in self._spark.streams.active:
                query.stop()
            running.join()
        return "" if ended[0][0] in (0, 130) else f"it ended with {ended[0][0]}: {ended[0][1]}"


def _given_here(words: list[str]) -> tuple[int, str]:
    """As the command does it where its tables are near: what it cannot do so, it begins again in Spark."""
    try:
        return given_here_alone(words)
    except NeedsSparkError:
        return _given(words)


def given_here_alone(words: list[str]) -> tuple[int, str]:
    """Without Spark, or not at all."""
    with locally():
        return _given(words)


def _given(words: list[str]) -> tuple[int, str]:
    """The job's status, and what it said."""
    job = importlib.import_module(f"jobs.{words[0].replace('-', '_')}").main
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        return job.status(words[1:]), said.getvalue()
