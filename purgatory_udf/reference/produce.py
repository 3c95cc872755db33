"""DelayedProduce: a producer with acks=-1 waits until all in-sync replicas have what it wrote."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.reference.partition import Partition, Standing
from purgatory_udf.reference.settling import NONE, Part, SettlingRequest, Verdict

ALL_IN_SYNC = -1
VALID_ACKS = (0, 1, ALL_IN_SYNC)
INVALID_REQUIRED_ACKS = "INVALID_REQUIRED_ACKS"
NOT_ENOUGH_REPLICAS_AFTER_APPEND = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


@dataclass(slots=True, kw_only=True)
class ProducePart(Part):
    replica: Partition
    required_offset: int


class DelayedProduce(SettlingRequest[ProducePart]):
    """A pending partition is settled by the first of

    A) the broker does not lead it (any more), does not know it, or its log directory is offline: that error
    B) the high watermark has reached the required offset: no error, or, if meanwhile the in-sync set has become smaller
       than min.insync.replicas, NOT_ENOUGH_REPLICAS_AFTER_APPEND
    """

    def verdict(self, part: ProducePart) -> Verdict | None:
        replica = part.replica
        if replica.standing is not Standing.ONLINE:  # Case A
            return Verdict(replica.standing.error, replica.standing.rule)
        if replica.high_watermark is not None and replica.high_watermark.offset >= part.required_offset:  # Case B
            if replica.under_min_isr:
                return Verdict(NOT_ENOUGH_REPLICAS_AFTER_APPEND, "not_enough_replicas")
            return Verdict(NONE, "high_watermark")
        return None
