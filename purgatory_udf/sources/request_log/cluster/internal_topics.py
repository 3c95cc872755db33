"""Appends that no PRODUCE line shows: coordinators keep offsets, groups and transactions in topics of their own.

The partition is |hash of the id| mod the topic's partitions, Java's hash of a string.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.sources.request_log.lines.logged_request import Request
from purgatory_udf.sources.request_log.lines.request_bodies import topic_of

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
# Kafka's defaults, for logs that show neither topic's partitions.
DEFAULT_PARTITIONS = {OFFSETS_TOPIC: 50, TRANSACTIONS_TOPIC: 50}

_GROUP_WRITES = frozenset({"OFFSET_COMMIT", "TXN_OFFSET_COMMIT", "SYNC_GROUP", "JOIN_GROUP", "LEAVE_GROUP"})
_TRANSACTION_WRITES = frozenset({"INIT_PRODUCER_ID", "ADD_PARTITIONS_TO_TXN", "ADD_OFFSETS_TO_TXN", "END_TXN"})
COORDINATOR_APIS = _GROUP_WRITES | _TRANSACTION_WRITES


def java_hash(text: str) -> int:
    """String.hashCode, over UTF-16 units."""
    units = text.encode("utf-16-be")
    value = 0
    for place in range(0, len(units), 2):
        value = (31 * value + (units[place] << 8 | units[place + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_for(text: str, partitions: int) -> int:
    """Kafka's Utils.abs keeps the low 31 bits."""
    return (java_hash(text) & 0x7FFFFFFF) % partitions


def coordinator_appends(request: Request) -> Iterator[tuple[str, str, int]]:
    """(topic, id, records at least) of what this request may append to a coordinator's topic."""
    body = request.body
    if request.api in ("OFFSET_COMMIT", "TXN_OFFSET_COMMIT"):
        records = sum(len(topic.get("partitions") or []) for topic in body.get("topics") or [])
        if records:
            yield OFFSETS_TOPIC, str(body["groupId"]), records
    elif request.api == "SYNC_GROUP":
        # The leader's carries the assignments; the others' only wait for them.
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


# What coordinators write to their own topics, where that waits in the purgatory Produce.
#
# A classic group coordinator (up to Kafka 3.9) appends offsets and groups as a produce with acks -1 would: its request
# is answered when all replicas in sync have them (`GroupMetadataManager.storeOffsets`, `.storeGroup`, both by
# `appendForGroup`). So do coordinators of transactions, in all versions
# (`TransactionStateManager.appendTransactionToLog`). From 4.0 on group coordinators write without it
# (`CoordinatorRuntime`).


# Kafka's defaults of `offsets.commit.timeout.ms`, and of a producer's `transaction.timeout.ms`, for which the state of
# its transaction waits.
COMMIT_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS = 5_000, 60_000

_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)*")
_LAST_CLASSIC = (3, 9)


def has_classic_coordinator(version: str) -> bool:
    """Whether group coordinators of that Kafka wait in purgatories. Raises ValueError where it is no version."""
    match = _VERSION.fullmatch(version)
    if not match:
        raise ValueError(f"{version!r} is no version of Kafka, such as 3.9")
    return (int(match[1]), int(match[2])) <= _LAST_CLASSIC


def replication_wait_ms(topic: str, classic: bool) -> int:
    """How long an append to the topic that no PRODUCE line shows waits for replicas; -1: it does not."""
    if topic == TRANSACTIONS_TOPIC:
        return TRANSACTION_TIMEOUT_MS
    return COMMIT_TIMEOUT_MS if topic == OFFSETS_TOPIC and classic else -1


# Transactions as the request log shows them: when a partition joined one, and whose producer id is whose.
#
# A produce of a transaction is appended only after the coordinator has answered that its partition belongs to the
# transaction (ADD_PARTITIONS_TO_TXN, sent by the broker while the produce waits): not between its S and L.


Key = tuple[str, int]

# Of how many producers it is remembered whose they are.
MAX_PRODUCERS = 100_000


@dataclass(slots=True)
class TransactionFacts:
    """`added`: (transactional id, topic, partition) → the moments at which the coordinator had answered. `timeouts_ms`:
    transactional id → how long its transactions may last."""

    producers: dict[int, str] = field(default_factory=dict)
    added: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    timeouts_ms: dict[str, int] = field(default_factory=dict)

    def read(self, request: Request) -> None:
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
                        moments = self.added.setdefault((transaction, topic_of(topic), int(partition)), [])
                        moments.append(request.answered_us)
                        moments.sort()

    def forget(self, before_us: int) -> None:
        """The moments of old, and producers whose number is long exceeded."""
        moments = {place: [at for at in added_at if at >= before_us] for place, added_at in self.added.items()}
        self.added = {place: added_at for place, added_at in moments.items() if added_at}
        self.producers = dict(list(self.producers.items())[-MAX_PRODUCERS:])
        self.timeouts_ms = dict(list(self.timeouts_ms.items())[-MAX_PRODUCERS:])

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {
            "producers": list(map(list, self.producers.items())),
            "timeouts_ms": self.timeouts_ms,
            "added": [[*place, moments] for place, moments in self.added.items()],
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> TransactionFacts:
        """From a `snapshot`."""
        added = {(who, topic, partition): list(moments) for who, topic, partition, moments in state["added"]}
        return cls(dict(map(tuple, state["producers"])), added, dict(state.get("timeouts_ms", {})))

    def rename(self, names: dict[str, str]) -> None:
        """Topic names for ids."""
        self.added = {(who, names.get(topic, topic), place): at for (who, topic, place), at in self.added.items()}

    def transaction_of(self, producer: int) -> str:
        """The producer's transaction, or a name that stands for the unknown one."""
        return self.producers.get(producer, f"#{producer}")

    def joined_us(self, transaction: str, key: Key, start_us: int, until_us: int) -> int | None:
        """When the coordinator answered for this partition while a produce of it waited; None if it did not have to."""
        moments = self.added.get((transaction, *key), [])
        place = bisect_left(moments, start_us)
        return moments[place] if place < len(moments) and moments[place] <= until_us else None


def _added_partitions(body: dict[str, Any]) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """(transactional id, producer id, topics) in every version's shape: one transaction up to 3, many from 4 on."""
    for txn in body.get("transactions") or []:
        yield str(txn["transactionalId"]), int(txn["producerId"]), txn.get("topics") or []
    for prefix in ("v3AndBelow", ""):
        transaction = body.get(f"{prefix}TransactionalId" if prefix else "transactionalId")
        if transaction:
            producer = body.get(f"{prefix}ProducerId" if prefix else "producerId", -1)
            yield str(transaction), int(producer), body.get(f"{prefix}Topics" if prefix else "topics") or []


def _refused_partitions(answer: dict[str, Any] | None) -> Iterator[tuple[str | None, str, int]]:
    """(transactional id, topic, partition) of those that did not join: the coordinator was not ready for them.

    Up to version 3 the answer does not repeat the transaction.
    """
    answer = answer or {}
    answers = [(txn["transactionalId"], txn.get("topicResults")) for txn in answer.get("resultsByTransaction") or []]
    answers += [(None, answer.get(name)) for name in ("resultsByTopicV3AndBelow", "results")]
    for transaction, topics in answers:
        for topic in topics or []:
            for partition in topic.get("resultsByPartition") or topic.get("results") or []:
                if partition.get("partitionErrorCode", partition.get("errorCode")):
                    yield transaction, topic_of(topic), int(partition["partitionIndex"])
