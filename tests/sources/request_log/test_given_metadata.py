"""Files supplied with a log: topic names, record batches, and the metadata log."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata, build_context
from purgatory_udf.sources.request_log.cluster_facts import topic_names_in_file, topic_sizes_in_file
from purgatory_udf.sources.request_log.cluster_metadata import (
    GIVEN,
    REPORTED,
    BrokerUnfenced,
    ClusterMetadata,
    PartitionChange,
    TopicSize,
    changes_in,
    read_metadata_dump,
)
from purgatory_udf.sources.request_log.internal_topics import BatchIndex, StoredBatch, batches_in_file
from tests.sources.request_log.log_lines import log_line, message, parse, us

ID = "UC2ju0ZLS_u_OYKtRyBPew"

CSV = """\
topic,partition,baseOffset,lastOffset,count,position,size,createTimeMs,leaderEpoch,transactional,control,producerId
t,2,0,3,4,0,102,1795229683360,0,false,false,-1
t,2,4,4,1,102,78,1795229686745,0,true,true,3000
"""
DUMP = """\
Dumping /var/kafka/t-2/00000000000000000000.log
Log starting offset: 0
baseOffset: 0 lastOffset: 3 count: 4 producerId: -1 isTransactional: false isControl: false CreateTime: 1795229683360 size: 102
baseOffset: 4 lastOffset: 4 count: 1 producerId: 3000 isTransactional: true isControl: true CreateTime: 1795229686745 size: 78
| offset: 4 CreateTime: 1795229686745 keySize: 4 valueSize: 6 endTxnMarker: COMMIT
"""  # noqa: E501
METADATA = (
    '| offset: 1 CreateTime: 1795229680226 keySize: -1 payload: {"type":"TOPIC_RECORD","version":0,'
    f'"data":{{"name":"t","topicId":"{ID}"}}}}\n'
    '| offset: 2 CreateTime: 1795229680226 keySize: -1 payload: {"type":"PARTITION_RECORD","version":2,"data":'
    f'{{"partitionId":2,"topicId":"{ID}","replicas":[2,3,1],"isr":[2,3,1],"leader":2,"leaderEpoch":0}}}}\n'
    '| offset: 3 CreateTime: 1795229690000 keySize: -1 payload: {"type":"PARTITION_CHANGE_RECORD","version":2,"data":'
    f'{{"partitionId":2,"topicId":"{ID}","isr":[2,1]}}}}\n'
    '| offset: 4 CreateTime: 1795229690000 keySize: -1 payload: {"type":"BROKER_REGISTRATION_CHANGE_RECORD","data":'
    '{"brokerId":3,"brokerEpoch":10,"fenced":1}}\n'
    '| offset: 5 CreateTime: 1795229699000 keySize: -1 payload: {"type":"BROKER_REGISTRATION_CHANGE_RECORD","data":'
    '{"brokerId":3,"brokerEpoch":10,"fenced":-1}}\n'
)


@pytest.mark.parametrize("text", [CSV, DUMP], ids=["CSV", "kafka-dump-log"])
def test_batches_are_read_in_both_formats(text: str, tmp_path: Path) -> None:
    file = tmp_path / "batches"
    file.write_text(text)
    assert batches_in_file(file) == {
        ("t", 2): [
            StoredBatch(0, 3, 102, 1795229683360000, False, False, -1),
            StoredBatch(4, 4, 78, 1795229686745000, True, True, 3000),
        ]
    }


def test_batches_without_producer_column_have_no_producer(tmp_path: Path) -> None:
    file = tmp_path / "batches.csv"
    file.write_text("topic,partition,baseOffset,lastOffset,size,createTimeMs\nt,2,0,3,102,1795229683360\n")
    assert batches_in_file(file) == {("t", 2): [StoredBatch(0, 3, 102, 1795229683360000, False, False, -1)]}


def test_partition_record_without_leader_has_none(tmp_path: Path) -> None:
    """The default of the field is -1."""
    file = tmp_path / "metadata.txt"
    file.write_text(METADATA.replace('"leader":2,', ""))
    assert [change.leader for change in read_metadata_dump(file).changes] == [-1, -1]


def test_responses_report_topics_without_error() -> None:
    partition = {"partitionIndex": 3, "leaderId": 1, "leaderEpoch": 4, "replicaNodes": [1, 2], "isrNodes": [1]}
    topics = [
        {"errorCode": 3, "name": "u", "partitions": [partition]},
        {"errorCode": 0, "name": None, "partitions": [partition]},
        {"errorCode": 0, "name": "t", "partitions": [{"errorCode": 5, **partition}, {"errorCode": 0, **partition}]},
    ]
    (request,) = parse([log_line(5, message("METADATA", {}, {"topics": topics}))])
    expected = PartitionChange(request.answered_us, "t", 3, REPORTED, 1, 4, (1, 2), (1,))
    assert list(changes_in(request)) == [expected]


def test_batches_of_request_sum_to_its_size() -> None:
    first, second, third = (StoredBatch(base, base + 1, 50, 0, False, False, -1) for base in (10, 12, 14))
    index = BatchIndex([third, second, first])
    assert index.batches_of_request(10, 100) == [first, second]
    assert index.batches_of_request(10, 99) == [first]
    assert index.batches_of_request(11, 50) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (f'[{{"name": "t", "topicId": "{ID}", "partitions": [{{}}, {{}}]}}]', 2),
        (f'[{{"name": "t", "topicId": "{ID}", "partitions": {{"0": {{}}, "1": {{}}}}}}]', 2),
        (f'[{{"name": "t", "topicId": "{ID}", "partitions": 2}}]', 2),
        (f'[{{"name": "t", "topicId": "{ID}"}}]', None),
        (f'{{"{ID}": "t"}}', None),
        (f"Topic: t\tTopicId: {ID}\tPartitionCount: 3\n\tTopic: t\tPartition: 0\n", 3),
        (f"{ID} t\n", None),
        (f"{ID}, t\n", None),
    ],
    ids=["list", "by number", "count", "names", "object", "kafka-topics", "lines", "commas"],
)
def test_topics_are_read_in_all_formats(text: str, size: int | None, tmp_path: Path) -> None:
    plain, packed = tmp_path / "topics", tmp_path / "topics.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert topic_names_in_file(plain) == topic_names_in_file(packed) == {ID: "t"}
    assert topic_sizes_in_file(packed) == ({} if size is None else {"t": size})


def test_metadata_dump_has_leaders_and_isr(tmp_path: Path) -> None:
    file = tmp_path / "metadata.txt"
    file.write_text(METADATA)
    cluster = read_metadata_dump(file)
    assert cluster.names == {ID: "t"}
    first, second = cluster.changes
    assert first == PartitionChange(1795229680226000, ID, 2, GIVEN, 2, 0, (2, 3, 1), (2, 3, 1))
    assert second == PartitionChange(1795229690000000, ID, 2, GIVEN, 2, 0, None, (2, 1))
    assert cluster.unfenced == [BrokerUnfenced(1795229699000000, 3)]


def test_metadata_dump_has_default_min_isr(tmp_path: Path) -> None:
    """A broker's own setting of `min.insync.replicas` is not that of the cluster."""

    def setting(kind: int, name: str, value: int) -> str:
        data = f'{{"resourceType":{kind},"resourceName":"{name}","name":"min.insync.replicas","value":"{value}"}}'
        return f'| offset: 9 CreateTime: 1795229680226 payload: {{"type":"CONFIG_RECORD","data":{data}}}\n'

    file = tmp_path / "metadata.txt"
    file.write_text(METADATA + setting(4, "", 2) + setting(4, "1", 3) + setting(2, "t", 1))
    cluster = read_metadata_dump(file)
    assert (cluster.min_isr, cluster.topic_min_isr) == (2, {"t": 1})


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (batches_in_file, "topic,partition\n", "column baseOffset is missing"),
        (batches_in_file, CSV.replace("102", "many", 1), ":2: invalid record batch"),
        (batches_in_file, "hello\n", "no record batch found"),
        (topic_names_in_file, "hello\n", "no topic id found"),
        (topic_names_in_file, "[1]", "not a list of topics"),
        (read_metadata_dump, "hello\n", "no "),
    ],
)
def test_wrong_format_is_reported(read: object, text: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text(text)
    assert callable(read)
    with pytest.raises(UserError) as raised:
        read(file)
    assert str(raised.value).startswith(f"{file}")
    assert error in str(raised.value)


def test_missing_file_is_reported() -> None:
    with pytest.raises(UserError, match=r"^nothing: cannot be read: No such file or directory$"):
        batches_in_file("nothing")


def test_metadata_log_dates_topic_and_its_deletion() -> None:
    """Brokers apply records 60 ms later."""
    created = [PartitionChange(us(0), "t", number, GIVEN, 1, 0, (1,), (1,)) for number in (0, 1)]
    deleted = [PartitionChange(us(5_000), "t", number, GIVEN, deleted=True) for number in (0, 1)]
    given = GivenMetadata(cluster=ClusterMetadata(changes=[*created, *deleted]))
    context = build_context([], given, (us(0), us(9_000)), ())
    assert context.topic_sizes == [TopicSize(us(60), "t", 2), TopicSize(us(5_060), "t", 0)]
