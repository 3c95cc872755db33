"""What a key remembers: little, and not more the longer its trace is."""

from __future__ import annotations

from typing import Any

import pytest

from purgatory_udf.columnar import codec
from purgatory_udf.columnar.engine import Engine, event_table
from purgatory_udf.columnar.frame import Frame
from purgatory_udf.columnar.outcome_rows import outcomes_of
from purgatory_udf.columnar.partition import State
from purgatory_udf.columnar.records import outcome_tables
from purgatory_udf.config import Config
from purgatory_udf.errors import UserError

Event = dict[str, Any]


def _append(number: int) -> list[Event]:
    """One batch of 100 bytes, and the high watermark that follows it."""
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
    return sum(len(state.to_bytes()) for state in engine.states.values())


def test_a_long_trace_leaves_no_more_state_than_a_short_one() -> None:
    sizes = []
    for length in (500, 5000):
        engine = Engine(Config(), retain_bytes=1000)
        for start in range(0, length, 100):
            engine.feed(event_table([event for n in range(start, start + 100) for event in _append(n)]))
        sizes.append(_size(engine))
    assert sizes[1] <= sizes[0] * 1.1


def test_a_fetch_far_behind_is_answered_as_if_nothing_had_been_forgotten() -> None:
    asked = [_fetch(5001, offset, 1) for offset in (0, 17, 4000, 4989, 4990, 4991, 4999)]
    asked = [event | {"seq": event["seq"] + place} for place, event in enumerate(asked)]
    answers = []
    for retain in (1000, 10**9):
        engine = Engine(Config(), retain_bytes=retain)
        for start in range(0, 5000, 500):
            engine.feed(event_table([event for n in range(start, start + 500) for event in _append(n)]))
        results = [*engine.feed(event_table(asked)), *engine.drain()]
        tables = [outcome_tables(settled, keys, "run", None) for settled, keys in results]
        answers.append([outcome for table in tables for outcome in outcomes_of(*table)])
    assert [outcome.bytes for outcome in answers[0]] == [1000, 1000, 1000, 1000, 1000, 900, 100]
    assert answers[0] == answers[1]


def test_an_open_watch_takes_at_most_64_bytes() -> None:
    engine = Engine(Config())
    engine.feed(event_table(_append(0)))
    before = _size(engine)
    engine.feed(event_table([_fetch(n % 400, 1, 50, wait_ms=30_000) | {"seq": 10_000 + n} for n in range(400, 2400)]))
    (state,) = engine.states.values()
    assert len(state.open) == 2000
    assert (_size(engine) - before) / 2000 <= 64


def test_a_drained_key_keeps_its_offsets_only() -> None:
    engine = Engine(Config())
    engine.feed(event_table([*_append(0), _fetch(1, 1, 50)]))
    engine.drain()
    (state,) = engine.states.values()
    assert (len(state.open), len(state.entries), len(state.fresh)) == (0, 0, 0)
    assert (state.logs.replicas.end[0], state.logs.replicas.hw[0]) == (1, 1)


def test_state_of_another_format_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "VERSION", codec.VERSION + 1)
    value = State().to_bytes()
    monkeypatch.undo()
    with pytest.raises(UserError, match="written in format 2, this version reads format 1"):
        State.from_bytes(value)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(UserError, match="not a watcher list"):
        codec.unpack(b"something else entirely")


def test_numbers_and_texts_come_back_as_they_went() -> None:
    import numpy as np

    texts = np.array(["é", "", "a" * 300], dtype=object)
    frame = Frame({"n": np.array([-(2**63), 2**63 - 1, 0]), "same": np.full(3, 7), "t": texts})
    back = codec.unpack(codec.pack({"f": frame, "nothing": frame.take(slice(0, 0))}))
    assert {name: column.tolist() for name, column in back["f"].columns.items()} == {
        name: column.tolist() for name, column in frame.columns.items()
    }
    assert len(back["nothing"]) == 0
