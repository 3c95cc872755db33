"""Calls taken apart by their groups, and put together, tell of each change what it told."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.columns.explode import explode
from purgatory_udf.rules.engine.key_shards import apart, by_partition, together
from purgatory_udf.rules.engine.loop.engine_call import Call, changes_of
from purgatory_udf.rules.engine.partition_engine import event_table

Told = tuple[int, str, int, int, tuple[int, ...] | None]


def _events() -> list[dict[str, Any]]:
    """Of three partitions in turn: who leads, in which epoch, who is in sync; and appends that tell nothing more."""
    events: list[dict[str, Any]] = []
    for number in range(30):
        where = {"broker": 1, "type": "partition", "topic": "t", "partition": number % 3}
        for change in ("leader", "log_end", "isr", "log_end"):
            told: dict[str, Any] = {"change": change, "offset": len(events)}
            if change != "log_end":
                told |= {"isr": [*range(number % 4)] if number % 5 else None, "leader_epoch": number}
            events.append({"time_us": 1000 * number, "seq": len(events), **where, **told})
    return events


def _told(call: Call) -> list[Told]:
    """By number: of which key, with which epoch and in-sync set; -1 and None where that is not told."""
    said: list[Told] = []
    for event in call.events[changes_of(call.events)]:
        if event["told"] < 0:
            said.append((int(event["seq"]), call.names[event["key"]], int(event["offset"]), -1, None))
            continue
        told = call.told[event["told"]]
        first, members = int(told["first"]), int(told["members"])
        among = tuple(call.in_sync["replica"][first : first + members].tolist()) if members >= 0 else None
        said.append((int(event["seq"]), call.names[event["key"]], int(event["offset"]), int(told["epoch"]), among))
    return sorted(said)


@pytest.mark.parametrize("size", [7, 40, 120])
def test_what_changes_tell_goes_with_them(size: int) -> None:
    events = _events()
    parts = [explode(event_table(events[begin : begin + size]), Config()) for begin in range(0, len(events), size)]
    everything = _told(explode(event_table(events), Config()))
    assert sum(among is not None for *_, among in everything) == 2 * 24
    whole = together(parts)
    assert _told(whole) == everything
    groups = [share for _, share in apart(whole, by_partition)]
    assert sum(len(share.told) for share in groups) == 60
    assert sorted(said for share in groups for said in _told(share)) == everything
    assert _told(together(groups)) == everything
