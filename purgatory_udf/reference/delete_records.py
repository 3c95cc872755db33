"""DelayedDeleteRecords: whoever deletes records waits until every replica has dropped them."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.reference.partition import Partition, Standing
from purgatory_udf.reference.settling import NONE, Part, SettlingRequest, Verdict

HIGH_WATERMARK = -1


@dataclass(slots=True, kw_only=True)
class DeleteRecordsPart(Part):
    replica: Partition
    offset: int


class DelayedDeleteRecords(SettlingRequest[DeleteRecordsPart]):
    """A pending partition is settled by the first of

    A) the broker does not lead it (any more), does not know it, or its log directory is offline: that error
    B) the low watermark, the least log start over its replicas, has reached the asked offset: no error
    """

    def verdict(self, part: DeleteRecordsPart) -> Verdict | None:
        replica = part.replica
        if replica.standing is not Standing.ONLINE:  # Case A
            return Verdict(replica.standing.error, replica.standing.rule)
        if replica.log.start is not None and replica.log.start >= part.offset:  # Case B
            return Verdict(NONE, "low_watermark")
        return None
