"""The reasons with which the contract rejects events and lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from purgatory_udf.contract import Rejection, read_line, read_row
from tests.contract.examples import FETCHED, PLACE, PRODUCED, WHOLE


def reason(kind: str, **changed: Any) -> str:
    with pytest.raises(Rejection) as caught:
        read_row({**WHOLE[kind], **changed})
    return caught.value.reason


def produced(**changed: Any) -> str:
    return reason("produce", partitions=[{**PRODUCED, "partition": 0}, {**PRODUCED, **changed}])


@pytest.mark.parametrize(
    ("kind", "field", "value", "expected"),
    [
        ("clock", "time_us", 0, "an integer >= 1"),
        ("clock", "time_us", -5, "an integer >= 1"),
        ("clock", "time_us", 1.0, "an integer >= 1"),
        ("clock", "time_us", "1", "an integer >= 1"),
        ("clock", "time_us", True, "an integer >= 1"),
        # A time in nanoseconds.
        ("clock", "time_us", 1_700_000_000_000_000_000, "an integer from 1 to 9000000000000000"),
        ("clock", "seq", 2**63, f"an integer from {-(2**63)} to {2**63 - 1}"),
        ("clock", "seq", 1.5, "an integer"),
        ("clock", "broker", -1, "an integer >= 0"),
        ("clock", "broker", 2**31, "an integer from 0 to 2147483647"),
        ("clock", "type", "tick", "one of produce, fetch, delete_records, partition, join_group, "),
        ("clock", "type", 3, "one of produce, fetch, "),
        ("clock", "type", ["clock"], "one of produce, fetch, "),
        ("produce", "request_id", {}, "a string or an integer"),
        ("produce", "client_id", 5, "a string"),
        ("produce", "acks", "all", "an integer"),
        ("produce", "acks", True, "an integer"),
        ("produce", "timeout_ms", -1, "an integer >= 0"),
        ("produce", "partitions", {}, "a list"),
        ("fetch", "replica_id", -3, "an integer from -2 to 2147483647"),
        ("fetch", "min_bytes", -1, "an integer >= 0"),
        ("fetch", "isolation", 1, "one of read_uncommitted, read_committed"),
        ("fetch", "isolation", "", "one of read_uncommitted, read_committed"),
        ("log_end", "topic", "", "a non-empty string"),
        ("log_end", "offset", -1, "an integer >= 0"),
        ("log_end", "bytes", -1, "an integer >= 0"),
        ("log_end", "partition", -1, "an integer >= 0"),
        ("log_end", "change", "moved", "one of log_end, high_watermark, last_stable, "),
        ("log_end", "change", ["log_end"], "one of log_end, "),
        ("high_watermark", "offset", -1, "an integer >= 0"),
        ("last_stable", "offset", -1, "an integer >= 0"),
        ("log_start", "offset", -1, "an integer >= 0"),
        ("segment_roll", "offset", -1, "an integer >= 0"),
        ("truncate", "offset", -1, "an integer >= 0"),
        ("replica_end", "offset", -1, "an integer >= 0"),
        ("replica_end", "replica_id", -1, "an integer >= 0"),
        ("leader", "leader_epoch", "4", "an integer >= 0"),
        ("leader", "replicas", 1, "a list"),
        ("join_group", "group", 5, "a string"),
        ("sync_group", "leader", "yes", "true or false"),
        ("sync_group", "leader", 1, "true or false"),
        ("heartbeat", "generation", -2, "an integer >= -1"),
    ],
)
def test_invalid_value_is_named_with_field(kind: str, field: str, value: Any, expected: str) -> None:
    message = reason(kind, **{field: value})
    assert message.startswith(f"{field}: expected {expected}")
    assert message.endswith(f", got {json.dumps(value)}")


@pytest.mark.parametrize(
    ("kind", "items", "sentence"),
    [
        ("fetch", [FETCHED, 5], "partitions[1]: expected an object, got 5"),
        (
            "fetch",
            [FETCHED, {**FETCHED, "partition": 4, "fetch_offset": -1}],
            "[1].fetch_offset: expected an integer >= 0, got -1",
        ),
        ("fetch", [{**FETCHED, "throttled": 0}], "partitions[0].throttled: expected true or false, got 0"),
        ("fetch", [FETCHED, FETCHED], "partitions[1]: duplicate orders-3"),
        ("delete_records", [{**PLACE, "offset": -2}], "partitions[0].offset: expected an integer >= -1, got -2"),
        ("offset_commit", [{**PLACE, "offset": -1}], "partitions[0].offset: expected an integer >= 0, got -1"),
    ],
)
def test_invalid_list_item_is_named_with_index(kind: str, items: list[Any], sentence: str) -> None:
    assert sentence in reason(kind, partitions=items)


def test_created_topics_are_distinct_and_partitioned() -> None:
    assert reason("create_topics", topics=[{"topic": "a", "partitions": 0}]) == (
        "topics[0].partitions: expected an integer >= 1, got 0"
    )
    assert reason("create_topics", topics=[{"topic": "a", "partitions": 1}] * 2) == "topics[1]: duplicate a"


def test_invalid_brokers_and_protocols_are_named_with_index() -> None:
    assert reason("leader", isr=[1, -2]) == "isr[1]: expected an integer >= 0, got -2"
    assert reason("isr", isr=[1, 1]) == "isr[1]: duplicate 1"
    assert reason("join_group", protocols=["range", 5]) == "protocols[1]: expected a string, got 5"


def test_appended_batch_requires_valid_offsets() -> None:
    assert produced(base_offset=-5) == "partitions[1].base_offset: expected an integer >= 0, got -5"
    assert produced(last_offset=-2) == "partitions[1].last_offset: expected an integer >= -1, got -2"
    assert produced(bytes=-1) == "partitions[1].bytes: expected an integer >= 0, got -1"
    assert produced(last_offset=8) == "partitions[1].last_offset: expected an integer >= base_offset - 1, got 8"


def test_empty_batch_ends_before_base_offset() -> None:
    batch = {**PRODUCED, "base_offset": 0, "last_offset": -1, "bytes": 0}
    assert read_row({**WHOLE["produce"], "partitions": [batch]})["partitions"] == [batch]


@pytest.mark.parametrize("offsets", [{}, {"base_offset": -1, "last_offset": -1}])
@pytest.mark.parametrize(("acks", "error"), [(-1, "NOT_LEADER_OR_FOLLOWER"), (0, "KAFKA_STORAGE_ERROR"), (2, "NONE")])
def test_failed_append_needs_no_offsets(acks: int, error: str, offsets: dict[str, int]) -> None:
    item = {**PLACE, "error": error, **offsets}
    event = read_row({**WHOLE["produce"], "acks": acks, "partitions": [item]})
    assert event["partitions"] == [{"base_offset": None, "last_offset": None, "bytes": None, **item}]


def test_negative_delay_is_accepted_where_kafka_accepts_it() -> None:
    assert read_row({**WHOLE["fetch"], "max_wait_ms": -1})["max_wait_ms"] == -1
    assert read_row({**WHOLE["create_topics"], "timeout_ms": -1})["timeout_ms"] == -1


def test_integer_request_id_becomes_text() -> None:
    assert read_row({**WHOLE["fetch"], "request_id": 815})["request_id"] == "815"


def test_long_value_is_abbreviated_in_reason() -> None:
    assert reason("clock", seq="x" * 1000) == f'seq: expected an integer, got "{"x" * 78}…'


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"time_us": 1, "type": "clock"} {}', "not JSON: Extra data at column 33"),
        (b'{"time_us": 1,', "not JSON: Expecting property name enclosed in double quotes at column 15"),
        (b'{"time_us": NaN}', "not JSON: NaN is not a JSON number"),
        (b'{"time_us": -Infinity}', "not JSON: -Infinity is not a JSON number"),
        (b'{"type": "clock", "x": "\\ud800"}', "not JSON: a \\u escape is an unpaired surrogate"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b"[1, 2]", "expected a JSON object, got array"),
        (b'"clock"', "expected a JSON object, got string"),
        (b"12", "expected a JSON object, got number"),
        (b"null", "expected a JSON object, got null"),
        (b"true", "expected a JSON object, got boolean"),
        (b"{}", "type: missing, expected one of produce, "),
        (b'{"type": "clock", "x": "\xff"}', "not UTF-8: byte 0xff at position 25"),
    ],
)
def test_line_without_object_is_rejected_with_reason(raw: bytes, sentence: str) -> None:
    with pytest.raises(Rejection) as caught:
        read_line(raw)
    assert caught.value.reason.startswith(sentence)


def test_number_with_thousands_of_digits_is_rejected() -> None:
    with pytest.raises(Rejection, match="not JSON") as caught:
        read_line(b'{"time_us": ' + b"1" * 5000 + b"}")
    assert caught.value.rule == "not JSON"


def test_blank_lines_are_skipped() -> None:
    assert [read_line(raw) for raw in (b"", b"  ", b"\t\r")] == [None, None, None]


def test_last_of_repeated_keys_wins() -> None:
    event = read_line(b'{"type": "fetch", "time_us": 1, "time_us": 2, "type": "clock"}')
    assert event == {"time_us": 2, "type": "clock", "seq": None, "broker": 0}


def test_unicode_text_is_preserved() -> None:
    line = json.dumps({**WHOLE["heartbeat"], "request_id": "😀"})[:-1] + ', "group": "ü"}'
    assert "\\ud83d\\ude00" in line
    assert read_line(line.encode()) == {**WHOLE["heartbeat"], "request_id": "😀", "group": "ü"}
