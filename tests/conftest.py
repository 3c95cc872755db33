"""One Spark session for all tests that need one; everything else runs without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the session is marked by it: `-m "not spark"` is the part that needs no Java."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two shuffle partitions, UTC, Delta, and no UI; its scratch files are the tests' own."""
    from purgatory_udf.session import build_session

    scratch: Path = tmp_path_factory.mktemp("spark")
    session = build_session(
        "tests",
        {
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            # Tests' tables are too small for compiled plans to pay.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch / "local"),
        },
    )
    yield session
    session.stop()
