"""Strings that compiled code reads from Arrow columns: topics of any length and alphabet, and vocabulary words."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine import event_records
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.column_access import PLACE, column_place, gather_strings, read_batch
from purgatory_udf.rules.engine.loop.codes import CHANGES, KINDS, REMOTE_EVENTS, Code, Error
from purgatory_udf.rules.engine.partition_engine import event_table

# Many differ only in the middle or at the end.
_TOPICS = st.one_of(
    st.text(min_size=1, max_size=30),
    st.builds(
        lambda same, other, end: same * 7 + other + end * 7,
        st.sampled_from("ab"),
        st.text("cd", max_size=3),
        st.sampled_from("ef"),
    ),
)


@settings(deadline=None)
@given(st.lists(st.tuples(_TOPICS, st.integers(0, 3)), min_size=1, max_size=30), st.data())
def test_keys_are_numbered_for_any_topic_name(keys_in_order: list[tuple[str, int]], data: st.DataObject) -> None:
    events: list[dict[str, object]] = [
        {"time_us": at, "seq": at, "broker": 1, "type": "partition", "change": "log_end"}
        | {"topic": topic, "partition": partition, "offset": at}
        for at, (topic, partition) in enumerate(keys_in_order)
    ]
    begin = data.draw(st.integers(0, len(events) - 1))
    table = pa.concat_tables([event_table(events[:begin]), event_table(events[begin:])])
    call = explode(table.slice(begin), Config())
    keys = [f"1/{partition}/{topic}" for topic, partition in keys_in_order[begin:]]
    assert call.names.strings == list(dict.fromkeys(keys))
    assert [call.names[key] for key in call.events["key"]] == keys


def test_thousands_of_keys_are_found_again() -> None:
    keys_in_order = [(f"topic-{number % 37}", number) for number in range(3_000)]
    events: list[dict[str, object]] = [
        {"time_us": at, "seq": at, "broker": 1, "type": "partition", "change": "log_end"}
        | {"topic": topic, "partition": partition, "offset": at}
        for at, (topic, partition) in enumerate([*keys_in_order, *reversed(keys_in_order)])
    ]
    call = explode(event_table(events), Config())
    keys = [f"1/{partition}/{topic}" for topic, partition in keys_in_order]
    assert call.names.strings == keys
    assert [call.names[key] for key in call.events["key"]] == [*keys, *reversed(keys)]


def test_keys_with_colliding_hashes_are_distinct() -> None:
    brokers, partitions = (
        [number for number in range(20_000) if number * int(multiple) % 2**32 < 2**22]
        for multiple in (event_records._BROKER_FACTOR, event_records._PARTITION_FACTOR)
    )
    assert len(brokers) > 10 < len(partitions)
    keys_in_order = [(1, partition) for partition in partitions] + [(broker, 0) for broker in brokers]
    events: list[dict[str, object]] = [
        {"time_us": at, "seq": at, "broker": broker, "type": "partition", "change": "log_end"}
        | {"topic": "t", "partition": partition, "offset": at}
        for at, (broker, partition) in enumerate(keys_in_order)
    ]
    assert explode(event_table(events), Config()).names.strings == [
        f"{broker}/{partition}/t" for broker, partition in keys_in_order
    ]


def test_unknown_errors_keep_their_names() -> None:
    errors = ["NOT_LEADER_OR_FOLLOWER", None, "NOT_LEADER_OR_FOLLOWEE", "KAFKA_STORAGE_ERROR", "REQUEST_TIMED_OUTS"]
    partitions = [{"topic": "t", "partition": nth, "error": error} for nth, error in enumerate(errors)]
    call = explode(
        event_table([{"time_us": 0, "seq": 0, "broker": 1, "type": "produce", "acks": -1, "partitions": partitions}]),
        Config(),
    )
    assert call.request_parts["error"].tolist() == [
        Error.NOT_LEADER_OR_FOLLOWER,
        Error.NONE,
        Error.RECORDED,
        Error.KAFKA_STORAGE_ERROR,
        Error.RECORDED,
    ]
    error_rows = call.request_parts["text"][call.request_parts["error"] == Error.RECORDED]
    assert [call.errors[row].as_py() for row in error_rows] == [errors[2], errors[4]]


def test_only_whole_words_are_known() -> None:
    kinds = ["fetch", "fetches", "fetcH", "heartbeat"]
    call = explode(
        event_table([{"time_us": at, "seq": at, "broker": 1, "type": kind} for at, kind in enumerate(kinds)]), Config()
    )
    assert call.events["code"].tolist() == [Code.FETCH]
    assert call.events["seq"].tolist() == [0]


def test_every_kind_and_change_is_known() -> None:
    """The last words are at the end of Arrow's buffer, beyond which nothing may be read."""
    kinds = [*KINDS.values(), *(code.name.lower() for code in REMOTE_EVENTS)]
    kinds.remove("remote_fetch")
    rows = [{"type": kind} for kind in kinds] + [{"type": "partition", "change": change} for change in CHANGES]
    call = explode(
        event_table([{"time_us": at, "seq": at, "broker": 1, "topic": "t"} | row for at, row in enumerate(rows)]),
        Config(),
    )
    of_topics = (Code.LED, Code.UNLED, Code.TOPIC_STOPPED)
    codes = [Code(code) for code in call.events["code"].tolist() if code not in of_topics]
    assert codes == [Code[kind.upper()] for kind in kinds] + list(CHANGES.values())


@settings(deadline=None)
@given(st.lists(st.text(max_size=40) | st.none(), min_size=1, max_size=40), st.data())
def test_strings_are_gathered_unless_null_or_empty(texts: list[str | None], data: st.DataObject) -> None:
    whole = pa.array(texts, pa.string())
    begin = data.draw(st.integers(0, len(texts) - 1))
    strings = whole.slice(begin)
    rows = data.draw(st.lists(st.integers(0, len(strings) - 1), min_size=1, unique=True))
    chosen = strings.take(pa.array(rows, pa.int64()))
    gathered = gather_strings(strings, np.array(rows, np.int64))
    if all(chosen.to_pylist()):
        assert gathered is not None
        gathered.validate(full=True)
        assert gathered.equals(chosen)
    else:
        assert gathered is None


_ITEM = pa.struct([("a", pa.int64()), ("b", pa.string())])
_SCHEMA = pa.schema(
    [("number", pa.int64()), ("text", pa.string()), ("items", pa.list_(_ITEM)), ("members", pa.list_(pa.int32()))]
)


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "number": st.none() | st.integers(0, 9),
                "text": st.none() | st.text(max_size=9),
                "items": st.none()
                | st.lists(
                    st.fixed_dictionaries({"a": st.none() | st.just(1), "b": st.none() | st.just("b")}), max_size=3
                ),
                "members": st.none() | st.lists(st.none() | st.just(1), max_size=3),
            }
        ),
        max_size=150,
    ),
    st.data(),
)
def test_rows_and_nulls_of_slices_are_counted(rows: list[dict[str, object]], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(rows)))
    batch = pa.RecordBatch.from_pylist(rows, _SCHEMA).slice(begin, data.draw(st.integers(0, 150)))
    where = [
        ("number",),
        ("text",),
        ("items",),
        ("items", "a"),
        ("items", "b"),
        ("members", ""),
        ("items", "no"),
        ("no",),
    ]
    places = np.array([column_place(_SCHEMA, *each) for each in where], np.int64).view(PLACE).ravel()
    columns = read_batch(batch, places)
    items, members = batch["items"].flatten(), batch["members"].flatten()
    arrays = [batch["number"], batch["text"], batch["items"], items.field("a"), items.field("b"), members]
    expected = [(len(array), len(array) - array.null_count) for array in arrays]
    assert columns[["count", "valid"]][:6].tolist() == expected
    assert columns[["values", "valid"]][6:].tolist() == [(0, 0), (0, 0)]
    assert [address != 0 for address in columns["values"][:6]] == [valid > 0 for _, valid in expected]


def test_missing_columns_are_an_error() -> None:
    with pytest.raises(KeyError, match=r"the table of events lacks the columns .'seq', 'topics'."):
        explode(event_table([]).drop_columns(["seq", "topics", "wake"]), Config())
