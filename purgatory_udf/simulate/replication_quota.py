"""A leader's replication quota, by topic."""

from __future__ import annotations

from purgatory_udf.reference.quota import ReplicationQuota
from purgatory_udf.reference.topic_partition import TopicPartition
from purgatory_udf.simulate.scenario import ReplicationQuotaSettings as Settings


class LeaderQuota:
    """Followers that are out of sync are held back while what they were sent goes beyond the quota."""

    def __init__(self, settings: Settings | None) -> None:
        # Which partitions are throttled is asked here, by topic: topics are created while the cluster runs.
        self._topics = frozenset(settings.topics) if settings is not None else frozenset()
        self._quota = ReplicationQuota(settings.bytes_per_second, frozenset()) if settings is not None else None

    def sent(self, key: TopicPartition, size: int, now_ms: int) -> None:
        """Bytes went to a follower."""
        if self._quota is not None and key.topic in self._topics:
            self._quota.record(size, now_ms)

    def throttles(self, key: TopicPartition, in_sync: bool, now_ms: int) -> bool:
        """Whether a follower's fetch of the partition adds nothing now."""
        return self._quota is not None and key.topic in self._topics and not in_sync and self._quota.exceeded(now_ms)
