"""What coordinators write to their own topics, where that waits in the purgatory Produce.

A classic group coordinator (up to Kafka 3.9) appends offsets and groups as a produce with acks -1 would: its request is
answered when all replicas in sync have them (`GroupMetadataManager.storeOffsets`, `.storeGroup`, both by
`appendForGroup`). So do coordinators of transactions, in all versions
(`TransactionStateManager.appendTransactionToLog`). From 4.0 on group coordinators write without it
(`CoordinatorRuntime`).
"""

from __future__ import annotations

import re

from purgatory_udf.requestlog.cluster.coordinators import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

# Kafka's defaults of `offsets.commit.timeout.ms`, and of a producer's `transaction.timeout.ms`, for which the state of
# its transaction waits.
COMMIT_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS = 5_000, 60_000

_VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)*")
_LAST_CLASSIC = (3, 9)


def is_classic(version: str) -> bool:
    """Whether group coordinators of that Kafka wait in purgatories. Raises ValueError where it is no version."""
    match = _VERSION.fullmatch(version)
    if not match:
        raise ValueError(f"{version!r} is no version of Kafka, such as 3.9")
    return (int(match[1]), int(match[2])) <= _LAST_CLASSIC


def waits_ms(topic: str, classic: bool) -> int:
    """How long an append to the topic that no PRODUCE line shows waits for replicas; -1: it does not."""
    if topic == TRANSACTIONS_TOPIC:
        return TRANSACTION_TIMEOUT_MS
    return COMMIT_TIMEOUT_MS if topic == OFFSETS_TOPIC and classic else -1
