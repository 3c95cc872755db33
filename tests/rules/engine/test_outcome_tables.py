"""Columns of strings, and names of keys, also if operations concern only a few of the keys in the state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine import outcome_tables
from purgatory_udf.rules.engine.loop.codes import ANY_BROKER, key_of
from purgatory_udf.rules.engine.loop.engine_call import KeyNames
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table

Event = dict[str, object]
KEYS = 50


def _log_end(seq: int, partition: int, offset: int) -> Event:
    where: Event = {"topic": f"topic-{partition % 3}", "partition": partition}
    change: Event = {"type": "partition", "change": "log_end", "offset": offset, "bytes": offset * 100, "wake": True}
    return {"time_us": 1_000_000 + seq * 1000, "seq": seq, "broker": 1} | where | change


def _fetch(seq: int, partitions: list[int], max_wait_ms: int) -> Event:
    parts = [
        {"topic": f"topic-{number % 3}", "partition": number, "fetch_offset": 0, "max_bytes": 1000}
        for number in partitions
    ]
    limits: Event = {"max_wait_ms": max_wait_ms, "min_bytes": 100, "max_bytes": 1000, "replica_id": 2}
    when: Event = {"time_us": 1_000_000 + seq * 1000, "seq": seq, "broker": 1, "request_id": f"r{seq}"}
    return when | {"type": "fetch", "partitions": parts} | limits


def test_few_of_many_keys_keep_their_names() -> None:
    engine = Engine(Config())
    engine.feed(event_table([_log_end(seq, seq, 0) for seq in range(KEYS)]))
    # The first fetch is completed by the append to its second partition; the second fetch expires.
    second = [_fetch(50, [40, 7], 1000), _fetch(51, [13], 10), _log_end(52, 7, 1), _log_end(70, 0, 1)]
    tables = Tables.of(engine.feed(event_table(second)))
    completed, expired = (
        table.select(["operation_id", "key", "trigger", "partitions"]).to_pylist()
        for table in (tables.completions, tables.expirations)
    )

    def part(topic: str, partition: int, size: int) -> Event:
        return {"topic": topic, "partition": partition, "error": "NONE", "bytes": size}

    parts = [part("topic-1", 40, 0), part("topic-1", 7, 100)]
    assert completed == [{"operation_id": 50, "key": "topic-1-40", "trigger": "topic-1-7", "partitions": parts}]
    parts = [part("topic-1", 13, 0)]
    assert expired == [{"operation_id": 51, "key": "topic-1-13", "trigger": None, "partitions": parts}]
    assert tables.watches.select(["operation_id", "topic", "partition", "status"]).to_pylist() == [
        {"operation_id": 50, "topic": "topic-1", "partition": 40, "status": "satisfied"},
        {"operation_id": 50, "topic": "topic-1", "partition": 7, "status": "satisfied"},
        {"operation_id": 51, "topic": "topic-1", "partition": 13, "status": "expired"},
    ]


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=1, max_size=20), st.data())
def test_strings_by_number_equal_those_of_arrow(strings: list[str | None], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=40))
    for most_unmeasured in (1 << 20, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outcome_tables, "_MAX_UNMEASURED", most_unmeasured)
            column = outcome_tables._Strings.from_array(pa.array(strings, pa.string())).column(
                np.array(numbers, np.int32)
            )
        column.validate(full=True)
        assert column.to_pylist() == [strings[number] for number in numbers]


_PARTITIONS = st.one_of(st.integers(-2, 1000), st.integers(-(1 << 31), (1 << 31) - 1))
_BROKERS = st.one_of(st.just(ANY_BROKER), st.integers(0, (1 << 31) - 1))


@settings(deadline=None)
@given(st.lists(st.tuples(_BROKERS, st.text(max_size=40), _PARTITIONS), max_size=20), st.data())
def test_names_of_keys_as_columns(keys: list[tuple[int | str, str, int]], data: st.DataObject) -> None:
    strings = [key_of(*key) for key in keys]
    columns = KeyNames(strings).columns
    named = KeyNames(columns=columns)
    assert list(named) == strings
    assert columns.topics.to_pylist() == [topic for _, topic, _ in keys]
    taken = np.array(data.draw(st.lists(st.integers(0, len(keys) - 1)) if keys else st.just([])), np.int32)
    for names in (KeyNames(strings), KeyNames(columns=columns), named):
        assert list(names.append(names.take(taken))) == strings + [strings[key] for key in taken]
    readable = outcome_tables._KeyColumns(named).readable.column(np.arange(len(keys) + 1, dtype=np.int32))
    readable.validate(full=True)
    assert readable.to_pylist() == [
        *(topic if partition == -1 else f"{topic}-{partition}" for _, topic, partition in keys),
        None,
    ]


def test_column_of_two_gigabytes_is_refused() -> None:
    """The size of the strings is known before they are written."""
    strings = outcome_tables._Strings.from_array(pa.array(["", "x" * (1 << 16)]))
    with pytest.raises(
        OverflowError, match=r"^40000 strings have 2621440000 bytes, more than an Arrow array can have$"
    ):
        strings.column(np.ones(40_000, np.int32))
