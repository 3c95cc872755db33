"""Several threads parse a table to the same call as one thread."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine import outcome_tables, parallel_pieces
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.jit.records import Records
from purgatory_udf.rules.engine.loop.codes import LAST_WITH_PARTS, UNKNOWN, Error
from purgatory_udf.rules.engine.loop.engine_call import Call
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table, replay
from tests.support import trace_strategies
from tests.support.examples import examples

Event = dict[str, Any]


def _rows(records: Records) -> list[dict[str, Any]]:
    assert records.dtype.names is not None
    names = [name for name in records.dtype.names if not name.startswith("padding")]
    columns = [records[name].tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _content(call: Call) -> tuple[Any, ...]:
    """Return the call's content with keys, parts, errors and in-sync sets in place of their numbers."""
    assert call.capacity is not None
    capacity, names, errors = call.capacity, call.names, call.errors.to_pylist()
    parts, leaders, members = _rows(call.request_parts), _rows(call.leader_and_isr), call.in_sync["replica"].tolist()
    for part in parts:
        # `text` and `epoch` share memory; neither is valid if INVALID_REQUIRED_ACKS replaced a recorded error.
        epoch, text = part.pop("epoch"), part.pop("text")
        if part["error"] == Error.RECORDED:
            part["text"] = errors[text]
        elif part["error"] != Error.INVALID_REQUIRED_ACKS:
            part["epoch"] = epoch
        part["key"] = names[part["key"]]
    events = _rows(call.events)
    for event in events:
        first, key, leader = event.pop("first"), event.pop("key"), event.pop("leader_and_isr")
        if event["code"] <= LAST_WITH_PARTS:
            event["parts"] = parts[first : first + event["count"]]
        else:
            event["key"] = names[key]
            if leader != UNKNOWN:
                del event["text"]
                epoch, first, count = leaders[leader].values()
                event["leader"] = epoch, members[first : first + count] if count >= 0 else None
    return (
        events,
        len(parts),
        len(leaders),
        len(members),
        call.request_ids.to_pylist(),
        call.client_ids.to_pylist(),
        sorted(errors),
        dict(zip(names, _rows(capacity.growth), strict=True)),
        sorted(_rows(capacity.purgatory_keys), key=str),
        capacity.operations,
        capacity.parts,
        capacity.nodes,
    )


@examples(12)
@given(trace_strategies.traces(), st.randoms(use_true_random=False), st.integers(2, 5))
def test_threads_parse_to_one_call(events: list[Event], chooser: Any, count: int) -> None:
    for mix in (False, True):
        if mix:
            chooser.shuffle(events)
        table = event_table([*events, {"time_us": 1, "type": "clock"}])
        # A slice of a larger table, like a micro-batch.
        table = table.slice(len(events) // 5)
        assert _content(explode(table, Config(), threads=count)) == _content(explode(table, Config(), threads=1))


def test_pieces_refer_to_their_own_rows() -> None:
    """The trace has topics, leaders, errors and group events, and is cut into any number of pieces."""
    part = {"topic": "t", "partition": 0, "last_offset": 1, "bytes": 1, "error": "MESSAGE_TOO_LARGE"}
    events: list[Event] = []
    for number in range(12):
        common = {"time_us": 1_000 * (number + 1), "seq": number, "broker": number % 3}
        topic = {"topic": f"t{number % 2}", "partitions": 1}
        change = {"type": "partition", "topic": "t", "partition": number % 4, "offset": 0}
        events += [
            common | {"type": "produce", "acks": -1, "timeout_ms": 9, "partitions": [part], "request_id": f"r{number}"},
            common | {"type": "create_topics", "timeout_ms": 9, "topics": [topic]},
            common | change | {"change": "leader", "isr": [*range(number % 3)]},
            common | change | {"change": "deleted"},
            common | {"type": "group", "group": "g"},
        ]
    for rows in (events, events[:1], events[2:3], []):
        table = event_table(rows)
        expected = _content(explode(table, Config(), threads=1))
        for count in range(2, 7):
            assert _content(explode(table, Config(), threads=count)) == expected
    assert explode(event_table(events), Config(), threads=5).errors.to_pylist() == 12 * ["MESSAGE_TOO_LARGE"]


def test_events_are_sorted_across_pieces() -> None:
    """Each piece is in order, but the second is earlier than the first."""
    change = {"broker": 1, "type": "partition", "topic": "t", "partition": 0, "change": "log_end"}
    late, early = ([change | {"time_us": 1000 * at, "seq": at} for at in numbers] for numbers in ((3, 4), (1, 2)))
    for ahead in ({}, {"time_us": 4000, "seq": 1}):
        call = explode(event_table([*late, early[0] | ahead, early[1] | ahead]), Config(), threads=2)
        order = list(zip(call.events["t"].tolist(), call.events["seq"].tolist(), strict=True))
        assert order == sorted(order)


def _sorted_rows(tables: Tables) -> list[list[str]]:
    """Return the rows of all tables. The order of the brokers' rows depends on where a table is cut into pieces."""
    return [sorted(map(str, table.to_pylist())) for table in vars(tables).values()]


@examples(5)
@given(trace_strategies.traces())
def test_two_threads_build_the_same_tables(events: list[Event]) -> None:
    events.sort(key=lambda event: (event["time_us"], event["seq"]))
    expected = _sorted_rows(replay([event_table(events)], Engine(Config())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_pieces, "_ROWS_PER_THREAD", 1)
        patch.setattr(pa, "cpu_count", lambda: 3)
        assert parallel_pieces.threads_for(2) == 2
        patch.setattr(outcome_tables, "_MIN_IN_TWO_THREADS", 1)
        assert _sorted_rows(replay([event_table(events)], Engine(Config()))) == expected


def test_thread_count_follows_rows_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pa, "cpu_count", lambda: 1)
    assert parallel_pieces.threads_for(10_000_000) == 1
    monkeypatch.setattr(pa, "cpu_count", lambda: 64)
    assert [parallel_pieces.threads_for(rows) for rows in (0, 50_000, 70_000, 10_000_000)] == [1, 1, 2, 4]


def test_exceptions_in_threads_are_raised() -> None:
    def work() -> int:
        raise ValueError("no")

    done = parallel_pieces.run_in_thread(work)
    with pytest.raises(ValueError, match="no"):
        done()
