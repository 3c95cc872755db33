"""Appends of coordinators to `__consumer_offsets` and `__transaction_state`, which no PRODUCE line shows.

A group or transactional id belongs to the partition |Java's hash of the id| mod the number of partitions.

A classic group coordinator (up to Kafka 3.9) appends offsets and groups like a produce with acks -1: its request is
answered when all in-sync replicas have them, so it waits in the purgatory `Produce`
(`GroupMetadataManager.storeOffsets` and `.storeGroup`, both through `appendForGroup`). Transaction coordinators do the
same in all versions (`TransactionStateManager.appendTransactionToLog`). Group coordinators from 4.0 on append without a
purgatory (`CoordinatorRuntime`).

A produce of a transaction is appended only when the coordinator has confirmed that the partition belongs to the
transaction (ADD_PARTITIONS_TO_TXN, which the broker sends while the produce waits). Its append is therefore not between
start and end of its handling, but after the time in `TransactionFacts`.

The file of `--batches` has offsets, size and time of each record batch on disk. It is a CSV with the columns topic,
partition, baseOffset, lastOffset, size and createTimeMs (optionally transactional, control and producerId), or the
output of `kafka-dump-log.sh`, with or without `--print-data-log`.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.coordinator.java_hash_order import string_hash
from purgatory_udf.sources.request_log.kafka_protocol import topic_of
from purgatory_udf.sources.request_log.log_files import open_text
from purgatory_udf.sources.request_log.logged_request import Request

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
# Kafka's default partition counts, for logs that show no partition of the topic.
DEFAULT_PARTITIONS = {OFFSETS_TOPIC: 50, TRANSACTIONS_TOPIC: 50}

_GROUP_WRITES = frozenset({"OFFSET_COMMIT", "TXN_OFFSET_COMMIT", "SYNC_GROUP", "JOIN_GROUP", "LEAVE_GROUP"})
_TRANSACTION_WRITES = frozenset({"INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "END_TXN"})
COORDINATOR_APIS = _GROUP_WRITES | _TRANSACTION_WRITES

# Kafka's defaults of `offsets.commit.timeout.ms`, and of a producer's `transaction.timeout.ms`, which bounds the append
# of its transaction's state.
COMMIT_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS = 5_000, 60_000

_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)*")
_LAST_CLASSIC = (3, 9)

Key = tuple[str, int]

# Largest number of producers for which the transactional id is remembered.
MAX_PRODUCERS = 100_000


def partition_for(text: str, partitions: int) -> int:
    """Return the partition of a group or transactional id. As in Kafka's `Utils.abs`, the lowest hash counts as 0."""
    unsigned = string_hash(text)
    return min(unsigned, (1 << 32) - unsigned) % (1 << 31) % partitions


def coordinator_appends(request: Request) -> Iterator[tuple[str, str, int]]:
    """Yield (topic, group or transactional id, minimum number of records) for each append the request may cause."""
    body = request.body
    if request.api in ("OFFSET_COMMIT", "TXN_OFFSET_COMMIT"):
        records = sum(len(topic.get("partitions") or []) for topic in body.get("topics") or [])
        if records:
            yield OFFSETS_TOPIC, str(body["groupId"]), records
    elif request.api == "SYNC_GROUP":
        # Only the request of the group's leader has assignments.
        if body.get("assignments"):
            yield OFFSETS_TOPIC, str(body["groupId"]), 1
    elif request.api in _GROUP_WRITES:
        if not (request.answer or {}).get("errorCode"):
            yield OFFSETS_TOPIC, str(body["groupId"]), 1
    elif request.api == "ADD_PARTITIONS_TO_TXN" and body.get("transactions"):
        for txn in body["transactions"]:
            if not txn.get("verifyOnly"):
                yield TRANSACTIONS_TOPIC, str(txn["transactionalId"]), 1
    elif request.api in _TRANSACTION_WRITES:
        transaction = body.get("transactionalId") or body.get("v3AndBelowTransactionalId")
        if transaction:
            yield TRANSACTIONS_TOPIC, str(transaction), 1


def has_classic_coordinator(version: str) -> bool:
    """Return whether this Kafka version has the classic group coordinator, with requests in purgatories.

    Raises ValueError if the text is not a version.
    """
    match = _VERSION.fullmatch(version)
    if not match:
        raise ValueError(f"{version!r} is not a Kafka version; expected one such as 3.9")
    return (int(match[1]), int(match[2])) <= _LAST_CLASSIC


def replication_wait_ms(topic: str, classic: bool) -> int:
    """Return how long an append of a coordinator to the topic waits for replicas, in ms; -1 if it does not wait."""
    if topic == TRANSACTIONS_TOPIC:
        return TRANSACTION_TIMEOUT_MS
    return COMMIT_TIMEOUT_MS if topic == OFFSETS_TOPIC and classic else -1


@dataclass(slots=True)
class TransactionFacts:
    """Collects facts about transactions from requests, which must come in time order.

    Attributes:
        producers: Transactional id by producer id.
        added: Times at which the coordinator added a partition, by (transactional id, topic, partition), sorted.
        timeouts_ms: Transaction timeout by transactional id.
    """

    producers: dict[int, str] = field(default_factory=dict)
    added: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    timeouts_ms: dict[str, int] = field(default_factory=dict)

    def read(self, request: Request) -> None:
        """Add the facts of one request; other requests are ignored."""
        if request.api == "INIT_PRODUCER_ID" and request.answer:
            transaction = request.body.get("transactionalId")
            if transaction and request.answer.get("producerId", -1) >= 0:
                self.producers[int(request.answer["producerId"])] = str(transaction)
                self.timeouts_ms[str(transaction)] = int(
                    request.body.get("transactionTimeoutMs", TRANSACTION_TIMEOUT_MS)
                )
        elif request.api == "ADD_PARTITIONS_TO_TXN":
            refused = set(_refused_partitions(request.answer))
            for transaction, producer, topics in _added_partitions(request.body):
                self.producers.setdefault(producer, transaction)
                for topic in topics:
                    for partition in topic.get("partitions") or []:
                        place = topic_of(topic), int(partition)
                        if (transaction, *place) in refused or (None, *place) in refused:
                            continue
                        times = self.added.setdefault((transaction, topic_of(topic), int(partition)), [])
                        times.append(request.answered_us)
                        times.sort()

    def forget(self, before_us: int) -> None:
        """Drop times before `before_us`, and all but the latest `MAX_PRODUCERS` producers."""
        recent = {place: [at for at in added_at if at >= before_us] for place, added_at in self.added.items()}
        self.added = {place: added_at for place, added_at in recent.items() if added_at}
        self.producers = dict(list(self.producers.items())[-MAX_PRODUCERS:])
        self.timeouts_ms = dict(list(self.timeouts_ms.items())[-MAX_PRODUCERS:])

    def snapshot(self) -> dict[str, Any]:
        """Return the facts as JSON values, from which `resumed` restores them."""
        return {
            "producers": list(map(list, self.producers.items())),
            "timeouts_ms": self.timeouts_ms,
            "added": [[*place, times] for place, times in self.added.items()],
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> TransactionFacts:
        """Restore facts from a `snapshot`."""
        added = {(name, topic, partition): list(times) for name, topic, partition, times in state["added"]}
        return cls(dict(map(tuple, state["producers"])), added, dict(state.get("timeouts_ms", {})))

    def rename(self, names: dict[str, str]) -> None:
        """Replace topic ids by topic names; `names` has the name of each known id."""
        self.added = {(name, names.get(topic, topic), part): at for (name, topic, part), at in self.added.items()}

    def transaction_of(self, producer: int) -> str:
        """Return the transactional id of a producer id, or `#` and the producer id if it is unknown."""
        return self.producers.get(producer, f"#{producer}")

    def joined_us(self, transaction: str, key: Key, start_us: int, until_us: int) -> int | None:
        """Return the time between `start_us` and `until_us` at which the coordinator added the partition.

        Returns None if it did not. Then the partition already belonged to the transaction when the produce arrived.
        """
        times = self.added.get((transaction, *key), [])
        place = bisect_left(times, start_us)
        return times[place] if place < len(times) and times[place] <= until_us else None


def _added_partitions(body: dict[str, Any]) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Yield (transactional id, producer id, topics): one transaction up to version 3, any number from 4 on."""
    for txn in body.get("transactions") or []:
        yield str(txn["transactionalId"]), int(txn["producerId"]), txn.get("topics") or []
    for prefix in ("v3AndBelow", ""):
        transaction = body.get(f"{prefix}TransactionalId" if prefix else "transactionalId")
        if transaction:
            producer = body.get(f"{prefix}ProducerId" if prefix else "producerId", -1)
            yield str(transaction), int(producer), body.get(f"{prefix}Topics" if prefix else "topics") or []


def _refused_partitions(answer: dict[str, Any] | None) -> Iterator[tuple[str | None, str, int]]:
    """Yield (transactional id, topic, partition) for each partition that the coordinator refused to add.

    Up to version 3 the response does not repeat the transactional id, so None is returned in its place.
    """
    answer = answer or {}
    answers = [(txn["transactionalId"], txn.get("topicResults")) for txn in answer.get("resultsByTransaction") or []]
    answers += [(None, answer.get(name)) for name in ("resultsByTopicV3AndBelow", "results")]
    for transaction, topics in answers:
        for topic in topics or []:
            for partition in topic.get("resultsByPartition") or topic.get("results") or []:
                if partition.get("partitionErrorCode", partition.get("errorCode")):
                    yield transaction, topic_of(topic), int(partition["partitionIndex"])


class StoredBatch(NamedTuple):
    """A record batch with the offsets `base` to `last`, both included; `created_us` is its timestamp."""

    base: int
    last: int
    bytes: int
    created_us: int
    transactional: bool
    control: bool
    producer_id: int


# Largest number of batches that one request writes to a partition.
MAX_BATCHES = 1_000

_COLUMNS = ("topic", "partition", "baseOffset", "lastOffset", "size", "createTimeMs")
_DUMPED_FILE = re.compile(r"^Dumping .*?([^/\\]+)-(\d+)[/\\]\d+\.log")
_DUMPED_BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) ")


class BatchIndex:
    """The batches of one partition, indexed by base offset."""

    def __init__(self, batches: Iterable[StoredBatch]) -> None:
        self.batches = sorted(set(batches))

    def between(self, base: int, end: int) -> list[StoredBatch]:
        """Return the batches that are completely within [base, end)."""
        place = bisect_left(self.batches, base, key=lambda batch: batch.base)
        return [batch for batch in self.batches[place : place + MAX_BATCHES] if batch.last < end]

    def batches_of_request(self, base: int, size: int) -> list[StoredBatch]:
        """Return the batches that a request of `size` bytes wrote from `base` on; empty if no batch starts at `base`.

        A request usually writes one batch to a partition; a few clients write several, with sizes that add up to
        `size`.
        """
        place = bisect_left(self.batches, base, key=lambda batch: batch.base)
        written: list[StoredBatch] = []
        taken, end = 0, base
        for batch in self.batches[place : place + MAX_BATCHES]:
            if batch.base != end or (written and taken + batch.bytes > size):
                break
            written.append(batch)
            taken, end = taken + batch.bytes, batch.last + 1
        return written


def batches_in_file(path: str | Path) -> dict[Key, list[StoredBatch]]:
    """Read the batches of each partition. Raises UserError if the file has neither format."""
    by_partition: dict[Key, list[StoredBatch]] = {}
    with open_text(path) as lines:
        first = lines.readline()
        rows = _from_csv([first, *lines], path) if first.startswith("topic,") else _from_dump(_chain(first, lines))
        for key, batch in rows:
            by_partition.setdefault(key, []).append(batch)
    if not by_partition:
        raise UserError(f"{path}: no record batch found; expected a CSV of batches or the output of kafka-dump-log")
    return by_partition


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _from_csv(lines: Iterable[str], path: str | Path) -> Iterator[tuple[Key, StoredBatch]]:
    rows = csv.DictReader(lines)
    missing = [column for column in _COLUMNS if column not in (rows.fieldnames or [])]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; expected {', '.join(_COLUMNS)}")
    for row in rows:
        try:
            yield (
                (row["topic"], int(row["partition"])),
                StoredBatch(
                    base=int(row["baseOffset"]),
                    last=int(row["lastOffset"]),
                    bytes=int(row["size"]),
                    created_us=int(row["createTimeMs"]) * 1000,
                    transactional=row.get("transactional") == "true",
                    control=row.get("control") == "true",
                    producer_id=int(row.get("producerId") or -1),
                ),
            )
        except (ValueError, TypeError) as error:
            numbers = ", ".join(_COLUMNS[1:])
            raise UserError(
                f"{path}:{rows.line_num}: invalid record batch ({error}); expected integers in {numbers}"
            ) from None


def _from_dump(lines: Iterable[str]) -> Iterator[tuple[Key, StoredBatch]]:
    key: Key | None = None
    for line in lines:
        if dumped := _DUMPED_FILE.match(line):
            key = (dumped[1], int(dumped[2]))
        elif key is not None and (batch := _DUMPED_BATCH.match(line)):
            words = line.split()
            fields = dict(zip(words[::2], words[1::2], strict=False))
            yield (
                key,
                StoredBatch(
                    base=int(batch[1]),
                    last=int(batch[2]),
                    bytes=int(fields.get("size:", 0)),
                    created_us=int(fields.get("CreateTime:", fields.get("LogAppendTime:", 0))) * 1000,
                    transactional=fields.get("isTransactional:") == "true",
                    control=fields.get("isControl:") == "true",
                    producer_id=int(fields.get("producerId:", -1)),
                ),
            )
