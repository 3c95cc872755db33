"""Replication quotas: when a leader holds back a follower, which is what `throttled` means in a fetch."""

from __future__ import annotations

from collections import deque

from purgatory_udf.reference.topic_partition import TopicPartition

# replication.quota.window.num and replication.quota.window.size.seconds
WINDOWS = 11
WINDOW_MS = 1000


class ReplicationQuota:
    """A limit on the bytes per second that leave a broker for the throttled replicas of some partitions."""

    def __init__(self, bytes_per_second: float, throttled: frozenset[TopicPartition]) -> None:
        self._bytes_per_second = bytes_per_second
        self._throttled = throttled
        self._windows: deque[tuple[int, int]] = deque()

    def record(self, size: int, now_ms: int) -> None:
        """Bytes were sent to a throttled replica."""
        begins_ms = now_ms // WINDOW_MS * WINDOW_MS
        if self._windows and self._windows[-1][0] == begins_ms:
            size += self._windows.pop()[1]
        self._windows.append((begins_ms, size))

    def exceeded(self, now_ms: int) -> bool:
        """Over the last windows, of which the first may have been shorter than a second."""
        while self._windows and self._windows[0][0] <= now_ms - WINDOWS * WINDOW_MS:
            self._windows.popleft()
        if not self._windows:
            return False
        elapsed_ms = max(WINDOW_MS, now_ms - self._windows[0][0])
        return sum(size for _, size in self._windows) * 1000 / elapsed_ms > self._bytes_per_second

    def throttles(self, key: TopicPartition, in_sync: bool, now_ms: int) -> bool:
        """Whether a follower's fetch of the partition adds nothing now. One that is in sync is never held back."""
        return not in_sync and key in self._throttled and self.exceeded(now_ms)
