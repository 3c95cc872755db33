"""The state of a group of keys: its size is bounded, and other formats are refused."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.engine.loop import state_codec
from purgatory_udf.rules.engine.loop.codes import FOREVER
from purgatory_udf.rules.engine.loop.engine_call import KeyNames
from purgatory_udf.rules.engine.loop.engine_state import State
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from tests.support.outcome_rows import outcomes_of

Event = dict[str, Any]


def _append(number: int) -> list[Event]:
    """Return an append of one batch of 100 bytes, and its high watermark."""
    where = {"time_us": 1_000_000 + number * 1000, "broker": 1, "type": "partition", "topic": "t", "partition": 0}
    end = {"change": "log_end", "offset": number + 1, "bytes": 100, "seq": 2 * number}
    return [where | end, where | {"change": "high_watermark", "offset": number + 1, "seq": 2 * number + 1}]


def _fetch(number: int, offset: int, min_bytes: int, wait_ms: int = 500) -> Event:
    part = {"topic": "t", "partition": 0, "fetch_offset": offset, "max_bytes": 1000}
    return {
        "time_us": 1_000_000 + number * 1000, "seq": 1_000_000 + number, "broker": 1, "type": "fetch",
        "request_id": f"request-{number:06d}", "client_id": "billing", "replica_id": -1, "max_wait_ms": wait_ms,
        "min_bytes": min_bytes, "max_bytes": 1_000_000, "isolation": "read_uncommitted", "partitions": [part],
    }  # fmt: skip


def _size(engine: Engine) -> int:
    return sum(len(state_codec.encode_state(state)) for state in engine.states.values())


def test_state_does_not_grow_with_the_trace() -> None:
    sizes = []
    for length in (500, 5000):
        engine = Engine(Config(), retain_bytes=1000, smallest_limit=1000)
        for start in range(0, length, 100):
            engine.feed(event_table([event for n in range(start, start + 100) for event in _append(n)]))
        sizes.append(_size(engine))
    assert sizes[1] <= sizes[0] * 1.1


def test_merged_batches_change_no_answer() -> None:
    fetches = [_fetch(5001, offset, 1) for offset in (0, 17, 4000, 4989, 4990, 4991, 4999)]
    fetches = [event | {"seq": event["seq"] + place} for place, event in enumerate(fetches)]
    answers = []
    for retain in (1000, 10**9):
        engine = Engine(Config(), retain_bytes=retain, smallest_limit=1000)
        for start in range(0, 5000, 500):
            engine.feed(event_table([event for n in range(start, start + 500) for event in _append(n)]))
        tables = Tables.of([*engine.feed(event_table(fetches)), *engine.drain()])
        answers.append(outcomes_of(tables.completions, tables.expirations, tables.cancellations))
    assert [outcome.bytes for outcome in answers[0]] == [1000, 1000, 1000, 1000, 1000, 900, 100]
    assert answers[0] == answers[1]


def test_open_watch_takes_at_most_64_bytes() -> None:
    engine = Engine(Config())
    engine.feed(event_table(_append(0)))
    before = _size(engine)
    engine.feed(event_table([_fetch(n % 400, 1, 50, wait_ms=30_000) | {"seq": 10_000 + n} for n in range(400, 2400)]))
    (state,) = engine.states.values()
    assert len(state.parts) == 2000
    assert (_size(engine) - before) / 2000 <= 64


def test_drained_key_keeps_only_its_offsets() -> None:
    engine = Engine(Config())
    engine.feed(event_table([*_append(0), _fetch(1, 1, 50)]))
    engine.drain()
    (state,) = engine.states.values()
    assert (len(state.operations), len(state.parts), len(state.request_ids)) == (0, 0, 0)
    assert (state.keys["end"][0], state.keys["hw"][0]) == (1, 1)


def test_remote_fetch_is_kept_until_its_read_returns() -> None:
    """Its deadline is not reported again once it has expired."""
    where = {"broker": 1, "topic": "t", "partition": 0}
    local = {"time_us": 1_000_500, "seq": 5, "type": "partition", "change": "local_log_start", "offset": 1, **where}
    read = {"seq": 1, "type": "remote_read", "request_id": "request-000001", "bytes": 50, **where}
    engine = Engine(Config())
    open_and_due = []
    for events in (
        [*_append(0), local, _fetch(1, 0, 50)],
        [read | {"time_us": 1_100_000}],
        [_fetch(200, 0, 50) | {"request_id": "request-000001"}],
        [local | {"time_us": 1_900_000}],
        [read | {"time_us": 2_000_000}],
    ):
        engine.feed(event_table(events))
        (state,) = engine.states.values()
        open_and_due.append((len(state.operations), state.next_deadline_ms))
    assert open_and_due == [(1, 1_501), (0, FOREVER), (1, 1_700), (1, FOREVER), (0, FOREVER)]


@pytest.mark.parametrize("size", [1, 7, 30])
def test_serialized_state_is_read_back(size: int) -> None:
    """Records, and texts that are long, empty, not ASCII or missing."""
    engine = Engine(Config())
    requests = [
        _fetch(n, 1, 50) | {"request_id": text, "client_id": client}
        for n, (text, client) in enumerate(zip(("é" * 40, "", None, "r"), (None, "c", "", None), strict=True), 1)
    ]
    engine.feed(event_table([*_append(0), *(requests * 10)[:size]]))
    (state,) = engine.states.values()
    again = state_codec.decode_state(state_codec.encode_state(state))
    for field in fields(State):
        before, after = getattr(state, field.name), getattr(again, field.name)
        if isinstance(before, KeyNames):
            before, after = before.strings, after.strings
        assert after.tolist() == before.tolist() if hasattr(before, "tolist") else after == before, field.name


def test_other_state_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_codec, "VERSION", state_codec.VERSION + 1)
    value = state_codec.encode_state(State())
    monkeypatch.undo()
    with pytest.raises(UserError, match=f"written in format {state_codec.VERSION + 1}, this version reads format"):
        state_codec.decode_state(value)


def test_other_bytes_are_refused() -> None:
    with pytest.raises(UserError, match="not written by this program"):
        state_codec.decode_state(b"something else entirely")


def test_format_version_follows_the_records() -> None:
    signature = hashlib.sha256(state_codec.layout_signature().encode()).hexdigest()[:16]
    assert (state_codec.VERSION, signature) == (18, "168ee3f15bf96184")
