"""The count of the tasks of Spark's running stages."""

from __future__ import annotations

from unittest.mock import Mock

from purgatory_udf.backend.backend import LocalBackend, SparkBackend, running_tasks


def test_tasks_of_running_stages_are_counted() -> None:
    spark = Mock()
    tracker = spark.sparkContext.statusTracker()
    tracker.getActiveStageIds.return_value = [1, 2, 3]
    stages = {1: Mock(numTasks=8, numCompletedTasks=3), 2: Mock(numTasks=4, numCompletedTasks=0), 3: None}
    tracker.getStageInfo.side_effect = stages.get
    assert running_tasks(SparkBackend(spark))() == (3, 12)
    assert running_tasks(LocalBackend())() == (0, 0)


def test_stopped_jvm_has_no_tasks() -> None:
    spark = Mock()
    spark.sparkContext.statusTracker().getActiveStageIds.side_effect = ConnectionRefusedError("the JVM has exited")
    assert running_tasks(SparkBackend(spark))() == (0, 0)
