"""Splitting, concatenating and serializing calls keeps what their events refer to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.key_shards import by_partition, concat_calls, split_call
from purgatory_udf.rules.engine.loop.codes import LAST_WITH_PARTS
from purgatory_udf.rules.engine.loop.engine_call import Call, change_rows
from purgatory_udf.rules.engine.loop.state_codec import decode_call, encode_call
from purgatory_udf.rules.engine.partition_engine import event_table

Change = tuple[int, str, int, int, tuple[int, ...] | None]


def _events() -> list[dict[str, Any]]:
    """Return changes of three partitions in turn: leaders, in-sync sets, and appends, which have neither."""
    events: list[dict[str, Any]] = []
    for number in range(30):
        where = {"broker": 1, "type": "partition", "topic": "t", "partition": number % 3}
        for change in ("leader", "log_end", "isr", "log_end"):
            fields: dict[str, Any] = {"change": change, "offset": len(events)}
            if change != "log_end":
                fields |= {"isr": [*range(number % 4)] if number % 5 else None, "leader_epoch": number}
            events.append({"time_us": 1000 * number, "seq": len(events), **where, **fields})
    return events


def _changes(call: Call) -> list[Change]:
    """Return number, key, offset, leader epoch and in-sync set of each change; -1 and None where it has none."""
    changes: list[Change] = []
    for event in call.events[change_rows(call.events)]:
        if event["leader_and_isr"] < 0:
            changes.append((int(event["seq"]), call.names[event["key"]], int(event["offset"]), -1, None))
            continue
        fields = call.leader_and_isr[event["leader_and_isr"]]
        first, members = int(fields["first"]), int(fields["members"])
        isr = tuple(call.in_sync["replica"][first : first + members].tolist()) if members >= 0 else None
        changes.append((int(event["seq"]), call.names[event["key"]], int(event["offset"]), int(fields["epoch"]), isr))
    return sorted(changes)


@pytest.mark.parametrize("size", [7, 40, 120])
def test_splitting_keeps_leaders_and_isrs(size: int) -> None:
    events = _events()
    parts = [explode(event_table(events[begin : begin + size]), Config()) for begin in range(0, len(events), size)]
    everything = _changes(explode(event_table(events), Config()))
    assert sum(isr is not None for *_, isr in everything) == 2 * 24
    whole = concat_calls(parts)
    assert _changes(whole) == everything
    groups = [share for _, share in split_call(whole, by_partition)]
    assert sum(len(share.leader_and_isr) for share in groups) == 60
    assert sorted(change for share in groups for change in _changes(share)) == everything
    assert _changes(concat_calls(groups)) == everything


def test_serialized_call_has_no_other_ids() -> None:
    """Five requests, two of which are selected, among appends, which have an id in this table, too."""
    events: list[dict[str, Any]] = []
    for number in range(5):
        common = {"time_us": 1000 * number, "broker": 1, "request_id": f"r{number}", "client_id": None}
        partition = {"topic": "t", "partition": 0, "last_offset": number, "bytes": 1}
        events.append(common | {"seq": 2 * number, "type": "produce", "acks": -1, "partitions": [partition]})
        change = {"type": "partition", "topic": "t", "partition": 0, "change": "log_end", "offset": number}
        events.append(common | {"seq": 2 * number + 1, "request_id": "other", "client_id": "c"} | change)
    call = explode(event_table(events), Config())
    for each, expected in ((call, ["r0", "r1", "r2", "r3", "r4"]), (call.select(np.arange(4, 8)), ["r2", "r3"])):
        read = decode_call(encode_call(each))
        assert read.request_ids.to_pylist() == expected
        assert read.client_ids.to_pylist() == [None] * len(expected)
        requests = read.events[read.events["code"] <= LAST_WITH_PARTS]
        assert requests["text"].tolist() == [*range(len(expected))]
        assert len(read) == len(each)
    assert call.request_ids.to_pylist()[:2] == ["r0", "other"]
