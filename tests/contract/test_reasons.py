"""What an event may not be, and the sentence that says so."""

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
    ("kind", "field", "value", "sentence"),
    [
        ("clock", "time_us", 0, "0: expected an integer >= 1"),
        ("clock", "time_us", -5, "-5: expected an integer >= 1"),
        ("clock", "time_us", 1.0, "1.0: expected an integer >= 1"),
        ("clock", "time_us", "1", '"1": expected an integer >= 1'),
        ("clock", "time_us", True, "true: expected an integer >= 1"),
        # A time in nanoseconds.
        (
            "clock",
            "time_us",
            1_700_000_000_000_000_000,
            "1700000000000000000: expected an integer from 1 to 9000000000000000",
        ),
        ("clock", "seq", 2**63, f"{2**63}: expected an integer from {-(2**63)} to {2**63 - 1}"),
        ("clock", "seq", 1.5, "1.5: expected an integer"),
        ("clock", "broker", -1, "-1: expected an integer >= 0"),
        ("clock", "broker", 2**31, "2147483648: expected an integer from 0 to 2147483647"),
        ("clock", "type", "tick", '"tick": expected one of produce, fetch, delete_records, partition, join_group, '),
        ("clock", "type", 3, "3: expected one of produce, fetch, "),
        ("clock", "type", ["clock"], '["clock"]: expected one of produce, fetch, '),
        ("produce", "request_id", {}, "{}: expected a string"),
        ("produce", "client_id", 5, "5: expected a string"),
        ("produce", "acks", "all", '"all": expected an integer'),
        ("produce", "acks", True, "true: expected an integer"),
        ("produce", "timeout_ms", -1, "-1: expected an integer >= 0"),
        ("produce", "partitions", {}, "{}: expected a list"),
        ("fetch", "replica_id", -3, "-3: expected an integer from -2 to 2147483647"),
        ("fetch", "min_bytes", -1, "-1: expected an integer >= 0"),
        ("fetch", "isolation", 1, "1: expected one of read_uncommitted, read_committed"),
        ("fetch", "isolation", "", '"": expected one of read_uncommitted, read_committed'),
        ("log_end", "topic", "", '"": expected a name'),
        ("log_end", "offset", -1, "-1: expected an integer >= 0"),
        ("log_end", "bytes", -1, "-1: expected an integer >= 0"),
        ("log_end", "partition", -1, "-1: expected an integer >= 0"),
        ("log_end", "change", "moved", '"moved": expected one of log_end, high_watermark, last_stable, '),
        ("log_end", "change", ["log_end"], '["log_end"]: expected one of log_end, '),
        ("high_watermark", "offset", -1, "-1: expected an integer >= 0"),
        ("last_stable", "offset", -1, "-1: expected an integer >= 0"),
        ("log_start", "offset", -1, "-1: expected an integer >= 0"),
        ("segment_roll", "offset", -1, "-1: expected an integer >= 0"),
        ("truncate", "offset", -1, "-1: expected an integer >= 0"),
        ("replica_end", "offset", -1, "-1: expected an integer >= 0"),
        ("replica_end", "replica_id", -1, "-1: expected an integer >= 0"),
        ("leader", "leader_epoch", "4", '"4": expected an integer >= 0'),
        ("leader", "replicas", 1, "1: expected a list"),
        ("join_group", "group", 5, "5: expected a string"),
        ("sync_group", "leader", "yes", '"yes": expected true or false'),
        ("sync_group", "leader", 1, "1: expected true or false"),
        ("heartbeat", "generation", -2, "-2: expected an integer >= -1"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_field(kind: str, field: str, value: Any, sentence: str) -> None:
    assert reason(kind, **{field: value}).startswith(f"{field}: {sentence}")


@pytest.mark.parametrize(
    ("kind", "items", "sentence"),
    [
        ("fetch", [FETCHED, 5], "partitions[1]: 5: expected an object"),
        ("fetch", [FETCHED, {**FETCHED, "partition": 4, "fetch_offset": -1}], "[1].fetch_offset: -1: expected an int"),
        ("fetch", [{**FETCHED, "throttled": 0}], "partitions[0].throttled: 0: expected true or false"),
        ("fetch", [FETCHED, FETCHED], "partitions[1]: orders-3: given twice"),
        ("delete_records", [{**PLACE, "offset": -2}], "partitions[0].offset: -2: expected an integer >= -1"),
        ("offset_commit", [{**PLACE, "offset": -1}], "partitions[0].offset: -1: expected an integer >= 0"),
    ],
)
def test_what_is_wrong_inside_a_list_is_named_with_its_place(kind: str, items: list[Any], sentence: str) -> None:
    assert sentence in reason(kind, partitions=items)


def test_topics_are_named_once_and_have_partitions() -> None:
    assert reason("create_topics", topics=[{"topic": "a", "partitions": 0}]) == (
        "topics[0].partitions: 0: expected an integer >= 1"
    )
    assert reason("create_topics", topics=[{"topic": "a", "partitions": 1}] * 2) == "topics[1]: a: given twice"


def test_brokers_and_protocols_in_a_list_are_named_with_their_place() -> None:
    assert reason("leader", isr=[1, -2]) == "isr[1]: -2: expected an integer >= 0"
    assert reason("isr", isr=[1, 1]) == "isr[1]: 1: given twice"
    assert reason("join_group", protocols=["range", 5]) == "protocols[1]: 5: expected a string"


def test_an_appended_batch_has_offsets_that_can_be() -> None:
    assert produced(base_offset=-5) == "partitions[1].base_offset: -5: expected an integer >= 0"
    assert produced(last_offset=-2) == "partitions[1].last_offset: -2: expected an integer >= -1"
    assert produced(bytes=-1) == "partitions[1].bytes: -1: expected an integer >= 0"
    assert produced(last_offset=8) == "partitions[1].last_offset: 8: expected an integer >= base_offset - 1"


def test_an_empty_batch_ends_one_before_it_begins() -> None:
    batch = {**PRODUCED, "base_offset": 0, "last_offset": -1, "bytes": 0}
    assert read_row({**WHOLE["produce"], "partitions": [batch]})["partitions"] == [batch]


@pytest.mark.parametrize("offsets", [{}, {"base_offset": -1, "last_offset": -1}])
@pytest.mark.parametrize(("acks", "error"), [(-1, "NOT_LEADER_OR_FOLLOWER"), (0, "KAFKA_STORAGE_ERROR"), (2, "NONE")])
def test_a_partition_that_was_not_appended_needs_no_offsets(acks: int, error: str, offsets: dict[str, int]) -> None:
    item = {**PLACE, "error": error, **offsets}
    event = read_row({**WHOLE["produce"], "acks": acks, "partitions": [item]})
    assert event["partitions"] == [{"base_offset": None, "last_offset": None, "bytes": None, **item}]


def test_a_delay_below_zero_is_kafkas_own_where_it_answers_at_once() -> None:
    assert read_row({**WHOLE["fetch"], "max_wait_ms": -1})["max_wait_ms"] == -1
    assert read_row({**WHOLE["create_topics"], "timeout_ms": -1})["timeout_ms"] == -1


def test_a_correlation_id_is_kept_as_its_digits() -> None:
    assert read_row({**WHOLE["fetch"], "request_id": 815})["request_id"] == "815"


def test_a_long_value_is_cut_in_the_sentence() -> None:
    assert reason("clock", seq="x" * 1000) == f'seq: "{"x" * 78}…: expected an integer'


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes at column 2"),
        (b'{"time_us": 1, "type": "clock"} {}', "not JSON: Extra data at column 33"),
        (b'{"time_us": 1,', "not JSON: Expecting property name enclosed in double quotes at column 15"),
        (b'{"time_us": NaN}', "not JSON: NaN is not a JSON number"),
        (b'{"time_us": -Infinity}', "not JSON: -Infinity is not a JSON number"),
        (b'{"type": "clock", "x": "\\ud800"}', "not JSON: an escape is half a surrogate pair"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
        (b"[1, 2]", "expected an object, got array"),
        (b'"clock"', "expected an object, got string"),
        (b"12", "expected an object, got number"),
        (b"null", "expected an object, got null"),
        (b"true", "expected an object, got boolean"),
        (b"{}", "type: missing: expected one of produce, "),
        (b'{"type": "clock", "x": "\xff"}', "not UTF-8: byte 0xff at column 25"),
    ],
)
def test_a_line_that_is_no_object_says_what_it_is(raw: bytes, sentence: str) -> None:
    with pytest.raises(Rejection) as caught:
        read_line(raw)
    assert caught.value.reason.startswith(sentence)


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(Rejection, match="not JSON") as caught:
        read_line(b'{"time_us": ' + b"1" * 5000 + b"}")
    assert caught.value.rule == "not JSON"


def test_blank_lines_are_no_events() -> None:
    assert [read_line(raw) for raw in (b"", b"  ", b"\t\r")] == [None, None, None]


def test_of_repeated_keys_the_last_counts() -> None:
    event = read_line(b'{"type": "fetch", "time_us": 1, "time_us": 2, "type": "clock"}')
    assert event == {"time_us": 2, "type": "clock", "seq": None, "broker": 0}


def test_text_of_any_script_and_surrogate_pairs_are_kept() -> None:
    line = json.dumps({**WHOLE["heartbeat"], "request_id": "😀"})[:-1] + ', "group": "ü"}'
    assert "\\ud83d\\ude00" in line
    assert read_line(line.encode()) == {**WHOLE["heartbeat"], "request_id": "😀", "group": "ü"}
