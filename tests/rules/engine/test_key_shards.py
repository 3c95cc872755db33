"""The names of shards, by which Spark distributes them over tasks, and requests with keys in several groups."""

from __future__ import annotations

from collections import Counter

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.key_shards import by_broker, by_partition, mark_split, shard_names, spark_hash
from purgatory_udf.rules.engine.partition_engine import event_table


def test_four_tasks_get_four_shards_each() -> None:
    tasks = Counter(spark_hash(name.encode()) % 4 for name in shard_names(16))
    assert tasks == {0: 4, 1: 4, 2: 4, 3: 4}


@pytest.mark.parametrize("shards", [1, 2, 5, 16, 100])
@pytest.mark.parametrize("tasks", [1, 2, 8, 32])
def test_tasks_get_equally_many_shards(shards: int, tasks: int) -> None:
    names = shard_names(shards)
    counts = Counter(spark_hash(name.encode()) % tasks for name in names)
    assert (len(set(names)), max(counts.values())) == (shards, -(-shards // tasks))


def test_requests_with_keys_in_several_groups_are_split() -> None:
    """A fetch of two partitions, a fetch of one, a fetch of one partition twice, and a fetch of none."""
    fetch = {"type": "fetch", "broker": 1, "client_id": "c", "replica_id": -1, "max_wait_ms": 100, "min_bytes": 1}
    events = [
        fetch
        | {
            "time_us": 1000 * seq,
            "seq": seq,
            "request_id": f"f{seq}",
            "max_bytes": 100,
            "isolation": "read_uncommitted",
            "partitions": [{"topic": "t", "partition": each, "fetch_offset": 0, "max_bytes": 9} for each in partitions],
        }
        for seq, partitions in enumerate([(0, 1), (0,), (1, 1), ()], 1)
    ]
    call = explode(event_table(events), Config())
    assert mark_split(call, by_partition).events["split"].tolist() == [1, 0, 0, 0]
    assert mark_split(call, by_broker).events["split"].tolist() == [0, 0, 0, 0]
    assert call.events["split"].tolist() == [0, 0, 0, 0]
