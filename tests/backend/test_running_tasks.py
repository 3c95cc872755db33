"""The count of the tasks of Spark's running stages."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject  # type: ignore[import-untyped]
from pyspark import StatusTracker

from purgatory_udf.backend.backend import LocalBackend, SparkBackend, running_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_tasks_of_running_stages_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Each task waits for a byte in a named pipe."""
    path = str(tmp_path / "end")
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)

    def wait(number: int) -> int:
        os.read(os.open(path, os.O_RDONLY), 1)
        return number

    job = threading.Thread(target=spark.sparkContext.parallelize(range(3), 3).map(wait).count)
    tasks = running_tasks(SparkBackend(spark))
    job.start()
    try:
        while tasks() != (0, 3):
            pass
    finally:
        os.write(pipe, b"123")
        job.join()
        os.close(pipe)
    while tasks() != (0, 0):
        pass
    assert running_tasks(LocalBackend())() == (0, 0)


def test_stopped_jvm_has_no_tasks() -> None:
    """Nothing listens at the JVM's port any more."""
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=1))
    tracker = StatusTracker(JavaObject("o1", gateway._gateway_client))
    context = SimpleNamespace(master="local[2]", statusTracker=lambda: tracker)
    spark = cast("Any", SimpleNamespace(sparkContext=context))
    assert running_tasks(SparkBackend(spark))() == (0, 0)
