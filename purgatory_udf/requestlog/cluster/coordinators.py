"""Appends that no PRODUCE line shows: coordinators keep offsets, groups and transactions in topics of their own.

The partition is |hash of the id| mod the topic's partitions, Java's hash of a string.
"""

from __future__ import annotations

from collections.abc import Iterator

from purgatory_udf.requestlog.lines.request import Request

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


def writes(request: Request) -> Iterator[tuple[str, str, int]]:
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
