"""The end of a transaction waits for replicas: `KafkaApis.handleWriteTxnMarkersRequest` calls
`ReplicaManager.appendRecords` once for each marker of the request, with acks -1 and the broker's `request.timeout.ms`,
so a DelayedProduce of all its partitions waits in the purgatory Produce. Times are milliseconds.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_metadata import GIVEN, ClusterMetadata, PartitionChange
from purgatory_udf.sources.request_log.cluster.record_batches import StoredBatch
from purgatory_udf.sources.request_log.importing.import_tasks import finish_events
from purgatory_udf.sources.request_log.requests.recorded_operation import first_slot
from tests.sources.request_log.lines import START_US, T, body, fetched, requests, us, written
from tests.sources.request_log.translate import Translation, translate

OFFSETS = "__consumer_offsets"


def _begun(transaction: str, producer: int) -> str:
    asked = {"transactionalId": transaction, "transactionTimeoutMs": 60_000}
    return written(10, body("INIT_PRODUCER_ID", asked, {"errorCode": 0, "producerId": producer, "producerEpoch": 0}))


def _ended(at: float, *markers: tuple[int, dict[str, dict[int, int]]], remote: float = 3.0) -> str:
    """Each marker a producer id, and by topic and partition the answered code."""
    asked = [
        {
            "producerId": producer,
            "producerEpoch": 0,
            "transactionResult": True,
            "topics": [{"name": topic, "partitionIndexes": list(codes)} for topic, codes in topics.items()],
            "coordinatorEpoch": 0,
        }
        for producer, topics in markers
    ]
    answered = [
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
    known = body("WRITE_TXN_MARKERS", {"markers": asked}, {"markers": answered}, client=sender, local=1, remote=remote)
    return written(at, known)


def _marker(producer: int, base: int, at: float = 100) -> StoredBatch:
    return StoredBatch(base, base, 78, us(at), True, True, producer)


def _given(batches: dict[tuple[str, int], list[StoredBatch]], **more: Any) -> GivenMetadata:
    changes = [PartitionChange(us(-5_000), *key, GIVEN, 1, 0, (1, 2), (1, 2)) for key in batches]
    return GivenMetadata({}, ClusterMetadata(changes=changes), batches, **more)


# Two transactions end with one request, which comes at 100 and is answered at 104.
TWO = _given({("t", 0): [_marker(7, 5), _marker(8, 6)], ("t", 1): [_marker(7, 9)]}, classic=True)
LINES = [_begun("x", 7), _begun("y", 8), _ended(104, (7, {"t": {0: 0, 1: 0}}), (8, {"t": {0: 0}}))]


def _ends(translation: Translation) -> list[dict[str, Any]]:
    return [event for event in translation.events if event["type"] == "produce"]


def test_each_marker_is_a_produce_of_its_transactions_partitions_after_they_were_appended() -> None:
    translation = translate(requests(LINES), TWO, {0: "broker-1.log"})
    first, second = _ends(translation)
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


def test_in_a_table_each_produce_of_a_line_gets_its_own_offsets() -> None:
    """What Spark gathers of a line are the offsets of all its markers."""
    translated = translate(requests(LINES), GivenMetadata({}))
    offsets = [{"slot": slot, "base": base, "end": base + 1} for slot, base in ((0, 5), (first_slot(1), 6), (1, 9))]
    rows = [
        {
            "file": 0,
            "at_line": 3,
            "sub": sub,
            "request_id": "log:3",
            "time_us": event["time_us"],
            "recorded": "{}",
            "event": json.dumps(event),
            "offsets": offsets,
        }
        for sub, event in enumerate(_ends(translated))
    ]
    (batch,) = finish_events(None)(iter([pa.RecordBatch.from_pylist(rows)]))
    given = [[part["base_offset"] for part in partitions] for partitions in batch.column("partitions").to_pylist()]
    assert given == [[5, 9], [6]]


@pytest.mark.parametrize("partitions", [(0,), (0, 1)])
def test_it_waits_until_the_followers_have_all_of_it(partitions: tuple[int, ...]) -> None:
    start, reached = {0: 5, 1: 9}, {0: 7, 1: 10}
    came = [
        fetched(90, start, replica=2, client="f", remote=0.0),
        fetched(104, {partition: reached[partition] for partition in partitions}, replica=2, client="f", remote=0.0),
    ]
    translation = translate(requests([*LINES, *(line.replace(T, "t") for line in came)]), TWO)
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    both, single = (ended[event["seq"]] for event in _ends(translation))
    assert (single.completed_by, single.watched, single.trigger) == ("high_watermark", True, "t-0")
    assert (both.watched, both.expired) == (True, partitions == (0,))
    assert [part.error for part in both.partitions] == [
        "NONE",
        "REQUEST_TIMED_OUT" if partitions == (0,) else "NONE",
    ]


def test_what_was_refused_was_not_appended_and_is_not_waited_for() -> None:
    lines = [_begun("x", 7), _ended(104, (7, {"t": {0: 0, 1: 6}}))]
    (ended,) = _ends(translate(requests(lines), _given({("t", 0): [_marker(7, 5)], ("t", 1): []})))
    assert [(partition["partition"], partition["error"]) for partition in ended["partitions"]] == [
        (0, "NONE"),
        (1, "NOT_LEADER_OR_FOLLOWER"),
    ]


@pytest.mark.parametrize(("classic", "count"), [(True, 1), (False, 0)])
def test_offsets_of_the_newer_group_coordinator_are_written_without_a_purgatory(classic: bool, count: int) -> None:
    """`GroupCoordinatorService.completeTransaction` from 4.0 on."""
    given = _given({(OFFSETS, 0): [_marker(7, 5)]}, classic=classic)
    translation = translate(requests([_begun("x", 7), _ended(104, (7, {OFFSETS: {0: 0}}))]), given)
    assert len(_ends(translation)) == count
    assert [event["offset"] for event in translation.events if event.get("change") == "log_end"][-1] == 6


def test_a_line_that_was_written_late_is_still_the_markers() -> None:
    given = _given({("t", 0): [_marker(7, 5, at=20), _marker(7, 9, at=91)]})
    lines = [_begun("x", 7), _ended(24, (7, {"t": {0: 0}})), _ended(104, (7, {"t": {0: 0}}))]
    ends = [end["partitions"][0]["base_offset"] for end in _ends(translate(requests(lines), given))]
    assert ends == [5, 9]


def test_without_batches_a_followers_offset_shows_the_marker() -> None:
    """What no reader has asked for is not known to be there: such a partition is not waited for."""
    waited = fetched(102, {0: 5}, replica=2, client="f", remote=11.0)
    came = [line.replace(T, "t") for line in (waited, fetched(104, {0: 6}, replica=2, client="f", remote=0.0))]
    changes = [PartitionChange(us(-5_000), "t", at, GIVEN, 1, 0, (1, 2), (1, 2)) for at in (0, 1)]
    lines = [_begun("x", 7), _ended(104, (7, {"t": {0: 0, 1: 0}})), *came]
    (ended,) = _ends(translate(requests(lines), GivenMetadata({}, ClusterMetadata(changes=changes))))
    assert [
        (partition["partition"], partition["base_offset"], partition["last_offset"])
        for partition in ended["partitions"]
    ] == [
        (0, 5, 5),
        (1, 0, -1),
    ]
