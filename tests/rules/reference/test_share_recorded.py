"""Facts of recordings in share groups: how long states were read, and acknowledgements that brokers accepted."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.contract import read_row
from purgatory_udf.rules.reference.reference_replay import ShareReplay, ShareResults

Event = dict[str, Any]

LOG: list[Event] = [
    {"type": "partition", "change": "leader", "offset": 0, "isr": [1]},
    {"type": "partition", "change": "log_end", "offset": 10, "bytes": 1000},
    {"type": "partition", "change": "high_watermark", "offset": 10},
]
SETTINGS = {"type": "share_group", "group": "g", "auto_offset_reset": "earliest", "record_lock_duration_ms": 2000}


def _fetch(at: int, member: str, **fields: Any) -> Event:
    partition = {"topic": "t", "partition": 0, "state_read_ms": fields.pop("state_read_ms", None)}
    request = {"time_us": at * 1000, "type": "share_fetch", "request_id": f"{member}-{at}", "group": "g"}
    return {**request, "member_id": member, "max_wait_ms": 500, "min_bytes": 1, "partitions": [partition], **fields}


def _acknowledge(at: int, member: str, first: int, last: int, accepted: bool = True) -> Event:
    acknowledged = {"topic": "t", "partition": 0, "first_offset": first, "last_offset": last, "types": [1]}
    request = {"time_us": at * 1000, "type": "share_acknowledge", "request_id": f"{member}-{at}", "group": "g"}
    return {**request, "member_id": member, "acknowledgements": [{**acknowledged, "accepted": accepted}]}


def _replay(*events: Event, config: Config | None = None) -> ShareResults:
    before = [{"time_us": 1000, "topic": "t", "partition": 0, "broker": 1, **event} for event in (*LOG, SETTINGS)]
    numbered = [read_row({"broker": 1, **event, "seq": seq}) for seq, event in enumerate([*before, *events])]
    replay = ShareReplay(config or Config(), 0)
    return replay.step(numbered, None)


def _deliveries(results: ShareResults) -> list[tuple[str, int, int, int, str]]:
    return [
        (each.member_id, each.first_offset, each.last_offset, each.delivery_count, each.ended_by)
        for _, each in results.deliveries
    ]


def test_fetch_waits_until_the_state_is_read() -> None:
    results = _replay(_fetch(100, "a", state_read_ms=70), _fetch(200, "b", max_wait_ms=50))
    assert [(end.ended_us, end.watched, end.expired, end.bytes) for end in results.outcomes] == [
        (170_000, True, False, 1000),
        (250_000, True, True, 0),
    ]


def test_accepted_acknowledgement_holds_for_another_member() -> None:
    """The replay has delivered all records to `a`, of which `b` held some in the recording."""
    events = _fetch(100, "a"), _acknowledge(200, "b", 0, 3), _acknowledge(300, "a", 4, 9)
    assert _deliveries(_replay(*events)) == [("a", 0, 3, 1, "accepted"), ("a", 4, 9, 1, "accepted")]


def test_accepted_acknowledgement_of_done_records_changes_nothing() -> None:
    events = _fetch(100, "a"), _acknowledge(200, "a", 0, 5), _acknowledge(300, "b", 4, 9)
    assert _deliveries(_replay(*events)) == [("a", 0, 5, 1, "accepted"), ("a", 6, 9, 1, "accepted")]


def test_accepted_acknowledgement_of_records_that_nobody_has() -> None:
    """Records 13 to 16 were delivered in the recording before the replay delivers anything."""
    events = _fetch(100, "a", max_records=2, acquire_mode=1), _acknowledge(200, "b", 13, 16), _fetch(300, "a")
    results = _replay(*events)
    assert _deliveries(results) == [
        ("b", 13, 16, 1, "accepted"),
        ("a", 0, 1, 1, "lock_expired"),
        ("a", 2, 9, 1, "lock_expired"),
    ]


def test_acknowledgement_that_was_not_accepted_needs_the_records() -> None:
    events = _fetch(100, "a"), _acknowledge(200, "b", 0, 3, accepted=False)
    assert _deliveries(_replay(*events)) == [("a", 0, 9, 1, "lock_expired")]


@pytest.mark.parametrize(
    ("setting", "deliveries"),
    [
        ("share.record_lock_duration_ms=x1", [("a", 0, 9, 1, "accepted")]),
        (
            "share.record_lock_duration_ms[group=g]=1000",
            [("a", 0, 9, 1, "lock_expired"), ("b", 0, 9, 2, "lock_expired")],
        ),
        ("share.record_lock_duration_ms[group=other]=1000", [("a", 0, 9, 1, "accepted")]),
    ],
)
def test_accepted_acknowledgement_does_not_outlast_lock(setting: str, deliveries: list[tuple[Any, ...]]) -> None:
    """With locks of 1 s, b gets the records before a acknowledges them; recorded are locks of 2 s."""
    events = _fetch(100, "a"), _fetch(1200, "b"), _acknowledge(1500, "a", 0, 9)
    assert _deliveries(_replay(*events, config=load_config(None, [setting]))) == deliveries


def test_accepted_acknowledgement_holds_with_other_settings() -> None:
    """A setting that takes no records from the member does not change what the recording shows."""
    events = _fetch(100, "a"), _acknowledge(200, "b", 0, 3), _acknowledge(300, "a", 4, 9)
    assert _deliveries(_replay(*events, config=load_config(None, ["share.max_wait_ms=x2"]))) == [
        ("a", 0, 3, 1, "accepted"),
        ("a", 4, 9, 1, "accepted"),
    ]
