"""Client quotas: whoever produces or fetches more bytes per second than allowed, or takes up more of a broker's threads
than allowed, gets the answer later.

A quota is a client's, or a user's: then all clients of that user share it. If several hold an answer back, the one that
does so longest counts (Kafka: `KafkaApis.sendResponseMaybeThrottle`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.simulation.scenario import Consumers, Producers
from purgatory_udf.simulation.scenario import ReplicationQuotaSettings as Settings

# quota.window.num and quota.window.size.seconds
SAMPLES = 11
SAMPLE_MS = 1000


class ClientQuota:
    """A client's byte rate over a sliding window, and how long its answer has to wait for the rate to come down."""

    def __init__(self, bytes_per_second: float) -> None:
        self._allowed = bytes_per_second
        self._samples: deque[tuple[int, int]] = deque()

    def throttle_ms(self, size: int, now_ms: int) -> int:
        """Record these bytes. Over a window of W with a rate of R, where Q is allowed: (R - Q) / Q * W."""
        begins_ms = now_ms // SAMPLE_MS * SAMPLE_MS
        if self._samples and self._samples[-1][0] == begins_ms:
            size += self._samples.pop()[1]
        self._samples.append((begins_ms, size))
        while self._samples[0][0] <= begins_ms - SAMPLES * SAMPLE_MS:
            self._samples.popleft()
        # As Kafka does: the window counts as full but for one sample, else a first request would look like a flood.
        window_ms = max(now_ms - self._samples[0][0], (SAMPLES - 1) * SAMPLE_MS)
        rate = sum(size for _, size in self._samples) * 1000 / window_ms
        return round((rate - self._allowed) / self._allowed * window_ms) if rate > self._allowed else 0


# A request quota holds no answer back longer than a window (Kafka: `ClientRequestQuotaManager.throttleTime`).
MAX_REQUEST_THROTTLE_MS = SAMPLE_MS


class QuotaEntity(NamedTuple):
    """Whose quotas a client's are, and how much of one thread it may take up, in percent."""

    name: str
    request_percentage: float | None


def quota_entities(clients: Iterable[Producers | Consumers]) -> Mapping[str, QuotaEntity]:
    """By client id."""
    return {
        f"{client.name}-{at}": QuotaEntity(client.user or f"{client.name}-{at}", client.quota_request_percentage)
        for client in clients
        for at in range(1, client.count + 1)
    }


class BrokerQuotas:
    """All quotas at one broker. `handling_us` is what a request takes up of a thread."""

    def __init__(self, of_clients: Mapping[str, QuotaEntity], handling_us: float) -> None:
        self._of_clients = of_clients
        self._handling_us = handling_us
        self._quotas: dict[tuple[str, str], ClientQuota] = {}

    def bytes_ms(self, kind: str, client_id: str, allowed: float | None, size: int, now_ms: int) -> int:
        if allowed is None:
            return 0
        return self._quota(kind, self._entity(client_id).name, allowed).throttle_ms(size, now_ms)

    def request_ms(self, client_id: str, now_ms: int) -> int:
        """A share of a thread is so many microseconds a second."""
        entity = self._entity(client_id)
        if entity.request_percentage is None:
            return 0
        quota = self._quota("request", entity.name, entity.request_percentage * 10_000)
        return min(quota.throttle_ms(round(self._handling_us), now_ms), MAX_REQUEST_THROTTLE_MS)

    def _entity(self, client_id: str) -> QuotaEntity:
        return self._of_clients.get(client_id) or QuotaEntity(client_id, None)

    def _quota(self, kind: str, entity: str, allowed: float) -> ClientQuota:
        return self._quotas.setdefault((kind, entity), ClientQuota(allowed))


# Replication quotas: when a leader holds back a follower, which is what `throttled` means in a fetch.


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


# A leader's replication quota, by topic.


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
