"""The names of shards, by which Spark distributes them over tasks."""

from __future__ import annotations

from collections import Counter

import pytest

from purgatory_udf.rules.engine.key_shards import shard_names, spark_hash


def test_four_tasks_get_four_shards_each() -> None:
    tasks = Counter(spark_hash(name.encode()) % 4 for name in shard_names(16))
    assert tasks == {0: 4, 1: 4, 2: 4, 3: 4}


@pytest.mark.parametrize("shards", [1, 2, 5, 16, 100])
@pytest.mark.parametrize("tasks", [1, 2, 8, 32])
def test_tasks_get_equally_many_shards(shards: int, tasks: int) -> None:
    names = shard_names(shards)
    counts = Counter(spark_hash(name.encode()) % tasks for name in names)
    assert (len(set(names)), max(counts.values())) == (shards, -(-shards // tasks))
