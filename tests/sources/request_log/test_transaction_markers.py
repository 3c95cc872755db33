"""Transaction markers wait for replicas.

`KafkaApis.handleWriteTxnMarkersRequest` calls `ReplicaManager.appendRecords` once for each marker of the request, with
acks -1 and the broker's `request.timeout.ms`. A DelayedProduce of the marker's partitions waits in the purgatory
`Produce`. Times are milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.importing.import_passes import UNORDERED
from purgatory_udf.sources.request_log.importing.import_tasks import finish_events
from purgatory_udf.sources.request_log.internal_topics import StoredBatch
from purgatory_udf.sources.request_log.logged_request import first_slot
from tests.sources.request_log.log_lines import START_US, T, fetch_line, log_line, message, parse, produce_line, us
from tests.sources.request_log.translate import Translation, translate

OFFSETS = "__consumer_offsets"


def _init_producer(transaction: str, producer: int) -> str:
    request = {"transactionalId": transaction, "transactionTimeoutMs": 60_000}
    return log_line(
        10, message("INIT_PRODUCER_ID", request, {"errorCode": 0, "producerId": producer, "producerEpoch": 0})
    )


def _write_markers(
    at: float, *markers: tuple[int, dict[str, dict[int, int]]], remote: float = 3.0, commits: bool = True
) -> str:
    """Return a WRITE_TXN_MARKERS line; each marker is a producer id and the error code by topic and partition."""
    markers_sent = [
        {
            "producerId": producer,
            "producerEpoch": 0,
            "transactionResult": commits,
            "topics": [{"name": topic, "partitionIndexes": list(codes)} for topic, codes in topics.items()],
            "coordinatorEpoch": 0,
        }
        for producer, topics in markers
    ]
    results = [
        {
            "producerId": producer,
            "topics": [
                {"name": topic, "partitions": [{"partitionIndex": at, "errorCode": code} for at, code in codes.items()]}
                for topic, codes in topics.items()
            ],
        }
        for producer, topics in markers
    ]
    sender = "broker-2-txn-marker-sender"
    request = message(
        "WRITE_TXN_MARKERS", {"markers": markers_sent}, {"markers": results}, client=sender, local=1, remote=remote
    )
    return log_line(at, request)


def _marker(producer: int, base: int, at: float = 100) -> StoredBatch:
    return StoredBatch(base, base, 78, us(at), True, True, producer)


def _given(batches: dict[tuple[str, int], list[StoredBatch]], **more: Any) -> GivenMetadata:
    changes = [PartitionChange(us(-5_000), *key, GIVEN, 1, 0, (1, 2), (1, 2)) for key in batches]
    return GivenMetadata({}, ClusterMetadata(changes=changes), batches, **more)


# One request completes two transactions; it arrives at 100 and is answered at 104.
TWO_TRANSACTIONS = _given({("t", 0): [_marker(7, 5), _marker(8, 6)], ("t", 1): [_marker(7, 9)]}, classic=True)
LINES = [
    _init_producer("x", 7),
    _init_producer("y", 8),
    _write_markers(104, (7, {"t": {0: 0, 1: 0}}), (8, {"t": {0: 0}})),
]


def _produces(translation: Translation) -> list[dict[str, Any]]:
    return [event for event in translation.events if event["type"] == "produce"]


def test_marker_becomes_produce_after_its_appends() -> None:
    translation = translate(parse(LINES), TWO_TRANSACTIONS, {0: "broker-1.log"})
    first, second = _produces(translation)
    assert {name: value for name, value in first.items() if name not in ("seq", "time_us")} == {
        "type": "produce",
        "broker": 1,
        "request_id": "broker-1.log:3",
        "client_id": "broker-2-txn-marker-sender",
        "acks": -1,
        "timeout_ms": 30_000,
        "partitions": [
            {"topic": "t", "partition": 0, "base_offset": 5, "last_offset": 5, "bytes": 78, "error": "NONE"},
            {"topic": "t", "partition": 1, "base_offset": 9, "last_offset": 9, "bytes": 78, "error": "NONE"},
        ],
    }
    assert [(partition["partition"], partition["base_offset"]) for partition in second["partitions"]] == [(0, 6)]
    assert 100 <= (first["time_us"] - START_US) / 1000 <= 101, "within the handling of its request"
    ends = [(event["offset"], event["seq"]) for event in translation.events if event.get("change") == "log_end"]
    assert {(6, True), (7, True), (10, True)} <= {(offset, seq < first["seq"]) for offset, seq in ends}
    assert translation.report.counts["transaction_markers"] == 2
    assert [
        (translation.recorded[end["seq"]].kind, translation.recorded[end["seq"]].complete) for end in (first, second)
    ] == [("transaction markers", False)] * 2


def test_produces_of_one_line_get_own_offsets() -> None:
    """Spark collects the offsets of a line's markers in one row."""
    translated = translate(parse(LINES), GivenMetadata({}))
    slots, bases = [0, first_slot(1), 1], [5, 6, 9]
    rows = [
        {
            "file": 0,
            "line": 3,
            "sub": sub,
            "time_us": event["time_us"],
            "event": json.dumps(event),
            "slots": slots,
            "bases": bases,
            "ends": [base + 1 for base in bases],
        }
        for sub, event in enumerate(_produces(translated))
    ]
    (batch,) = finish_events(None, "log-{}".format)(iter([pa.RecordBatch.from_pylist(rows, schema=UNORDERED)]))
    given = [[part["base_offset"] for part in partitions] for partitions in batch.column("partitions").to_pylist()]
    assert given == [[5, 9], [6]]


@pytest.mark.parametrize("partitions", [(0,), (0, 1)])
def test_marker_waits_for_all_partitions(partitions: tuple[int, ...]) -> None:
    start, reached = {0: 5, 1: 9}, {0: 7, 1: 10}
    fetches = [
        fetch_line(90, start, replica=2, client="f", remote=0.0),
        fetch_line(104, {partition: reached[partition] for partition in partitions}, replica=2, client="f", remote=0.0),
    ]
    translation = translate(parse([*LINES, *(line.replace(T, "t") for line in fetches)]), TWO_TRANSACTIONS)
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    both, single = (ended[event["seq"]] for event in _produces(translation))
    assert (single.completed_by, single.watched, single.trigger) == ("high_watermark", True, "t-0")
    assert (both.watched, both.expired) == (True, partitions == (0,))
    assert [part.error for part in both.partitions] == [
        "NONE",
        "REQUEST_TIMED_OUT" if partitions == (0,) else "NONE",
    ]


def test_refused_partition_is_not_awaited() -> None:
    lines = [_init_producer("x", 7), _write_markers(104, (7, {"t": {0: 0, 1: 6}}))]
    translation = translate(parse(lines), _given({("t", 0): [_marker(7, 5)], ("t", 1): []}))
    (ended,) = _produces(translation)
    recorded = translation.recorded[ended["seq"]]
    assert recorded.complete, "the wait of the only marker is that of the request"
    assert [(partition["partition"], partition["error"]) for partition in ended["partitions"]] == [
        (0, "NONE"),
        (1, "NOT_LEADER_OR_FOLLOWER"),
    ]


@pytest.mark.parametrize(("classic", "count"), [(True, 1), (False, 0)])
def test_new_coordinator_appends_marker_without_wait(classic: bool, count: int) -> None:
    """`GroupCoordinatorService.completeTransaction` from 4.0 on."""
    given = _given({(OFFSETS, 0): [_marker(7, 5)]}, classic=classic)
    translation = translate(parse([_init_producer("x", 7), _write_markers(104, (7, {OFFSETS: {0: 0}}))]), given)
    assert len(_produces(translation)) == count
    assert [event["offset"] for event in translation.events if event.get("change") == "log_end"][-1] == 6


def test_marker_belongs_to_line_nearest_in_time() -> None:
    given = _given({("t", 0): [_marker(7, 5, at=20), _marker(7, 9, at=91)]})
    lines = [_init_producer("x", 7), _write_markers(24, (7, {"t": {0: 0}})), _write_markers(104, (7, {"t": {0: 0}}))]
    ends = [end["partitions"][0]["base_offset"] for end in _produces(translate(parse(lines), given))]
    assert ends == [5, 9]


def test_follower_offset_shows_marker() -> None:
    """A partition without fetches has no known append, so the marker does not wait for it."""
    waited = fetch_line(102, {0: 5}, replica=2, client="f", remote=11.0)
    fetches = [line.replace(T, "t") for line in (waited, fetch_line(104, {0: 6}, replica=2, client="f", remote=0.0))]
    changes = [PartitionChange(us(-5_000), "t", at, GIVEN, 1, 0, (1, 2), (1, 2)) for at in (0, 1)]
    lines = [_init_producer("x", 7), _write_markers(104, (7, {"t": {0: 0, 1: 0}})), *fetches]
    (ended,) = _produces(translate(parse(lines), GivenMetadata({}, ClusterMetadata(changes=changes))))
    assert [
        (partition["partition"], partition["base_offset"], partition["last_offset"])
        for partition in ended["partitions"]
    ] == [
        (0, 5, 5),
        (1, 0, -1),
    ]


@pytest.mark.parametrize("commits", [True, False])
def test_marker_shows_aborted_records(commits: bool) -> None:
    fetches = [fetch_line(at, {0: offset}, replica=2, client="f", remote=0.0) for at, offset in ((103, 5), (110, 6))]
    lines = [produce_line(100, 0, transaction="x", remote=2.0), *fetches]
    lines = [_init_producer("x", 7), *(line.replace(T, "t") for line in lines)]
    lines.insert(3, _write_markers(104, (7, {"t": {0: 0}}), commits=commits))
    changes = [PartitionChange(us(-5_000), "t", 0, GIVEN, 1, 0, (1, 2), (1, 2))]
    events = translate(parse(lines), GivenMetadata({}, ClusterMetadata(changes=changes))).events
    stable = [(event["offset"], event.get("aborted")) for event in events if event.get("change") == "last_stable"]
    assert stable == [(0, None), (6, None if commits else [{"first_offset": 0, "last_offset": 4}])]
