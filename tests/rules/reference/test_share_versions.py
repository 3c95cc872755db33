"""Rules of share groups that differ between versions of Kafka (`share.version`)."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import load_config
from purgatory_udf.rules.reference.reference_replay import Replayer

Event = dict[str, Any]


def _append(at_ms: int, partition: int, offset: int) -> list[Event]:
    place = {"time_us": at_ms * 1000, "type": "partition", "topic": "t", "partition": partition}
    end = {**place, "change": "log_end", "offset": offset, "bytes": 100 * offset, "batches": 1}
    return [end, {**place, "change": "high_watermark", "offset": offset}]


def _fetch(at_ms: int, partitions: list[int], **fields: Any) -> Event:
    return {
        "time_us": at_ms * 1000, "type": "share_fetch", "group": "g", "member_id": "m", "max_wait_ms": 500,
        "min_bytes": 1, "max_records": 100,
        "partitions": [{"topic": "t", "partition": each} for each in partitions], **fields,
    }  # fmt: skip


def _replayer(version: str, events: list[Event]) -> Replayer:
    config = load_config(None, [f"share.version={version}", "share.record_lock_duration_ms=1000"])
    replayer = Replayer(config, 0)
    settings = {"time_us": 0, "type": "share_group", "group": "g", "auto_offset_reset": "earliest"}
    for seq, event in enumerate([settings, *events], 1):
        replayer.apply(event | {"seq": seq})
    return replayer


@pytest.mark.parametrize(
    ("version", "delivered"), [("4.1", [10, 10, 10, 10, 10]), ("4.2", [10, 10, 10, 5, 1]), ("4.4", [10, 10, 10, 5, 1])]
)
def test_failing_records_are_delivered_in_parts(version: str, delivered: list[int]) -> None:
    """Nothing is acknowledged, and the delivery limit is 5; the acquire mode is 1, which version 4.1 does not know."""
    events = [*_append(1, 0, 10), *(_fetch(at, [0], acquire_mode=1) for at in (100, 2100, 4100, 6100, 8100))]
    replayed = _replayer(version, events).finish()
    sizes: dict[int, int] = {}
    for _, each in replayed.deliveries:
        sizes[each.operation_id] = sizes.get(each.operation_id, 0) + each.last_offset + 1 - each.first_offset
    assert [sizes[seq] for seq in sorted(sizes)] == delivered


@pytest.mark.parametrize(("version", "entries"), [("4.1", 0), ("4.3", 0), ("4.4", 2)])
def test_only_partitions_with_data_are_checked(version: str, entries: int) -> None:
    """A fetch is watched on two keys of both partitions; an append to one completes it (KAFKA-20425)."""
    events = [*_append(1, 0, 0), *_append(1, 1, 0), _fetch(100, [0, 1]), *_append(200, 1, 5)]
    assert _replayer(version, events).cluster.broker(0).shares.purgatory.watched() == entries
