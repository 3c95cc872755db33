"""Client quotas and replication quotas.

A broker delays the responses to a client that exceeds its byte rate or its share of the broker's threads. A quota
belongs to a client, or to a user, and is then shared by the user's clients. If several quotas throttle a response, the
longest delay applies (Kafka: `KafkaApis.sendResponseMaybeThrottle`). A replication quota determines which partitions of
a follower's fetch are `throttled`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.simulation.client_network import Reply
from purgatory_udf.simulation.scenario import Consumers, Producers
from purgatory_udf.simulation.scenario import ReplicationQuotaSettings as Settings
from purgatory_udf.simulation.simpy_environment import Environment

# quota.window.num and quota.window.size.seconds
SAMPLES = 11
SAMPLE_MS = 1000


class ClientQuota:
    """A client's rate over a sliding window, and the throttle time that reduces the rate to the quota."""

    def __init__(self, bytes_per_second: float) -> None:
        self._allowed = bytes_per_second
        self._samples: deque[tuple[int, int]] = deque()

    def throttle_ms(self, size: int, now_ms: int) -> int:
        """Count `size` against the quota, and return the throttle time in milliseconds.

        With rate R over a window W and quota Q, it is (R - Q) / Q * W, or 0 if R does not exceed Q.
        """
        start_ms = now_ms // SAMPLE_MS * SAMPLE_MS
        if self._samples and self._samples[-1][0] == start_ms:
            size += self._samples.pop()[1]
        self._samples.append((start_ms, size))
        while self._samples[0][0] <= start_ms - SAMPLES * SAMPLE_MS:
            self._samples.popleft()
        # As in Kafka, the window has at least all samples but one; otherwise a first request would exceed every quota.
        window_ms = max(now_ms - self._samples[0][0], (SAMPLES - 1) * SAMPLE_MS)
        rate = sum(size for _, size in self._samples) * 1000 / window_ms
        return round((rate - self._allowed) / self._allowed * window_ms) if rate > self._allowed else 0


# A request quota throttles for one window at most (Kafka: `ClientRequestQuotaManager.throttleTime`).
MAX_REQUEST_THROTTLE_MS = SAMPLE_MS


class QuotaEntity(NamedTuple):
    """The entity that a client's quotas belong to, and its request quota in percent of one broker thread."""

    name: str
    request_percentage: float | None


def quota_entities(clients: Iterable[Producers | Consumers]) -> Mapping[str, QuotaEntity]:
    """Return the quota entity of each client id."""
    return {
        f"{client.name}-{at}": QuotaEntity(client.user or f"{client.name}-{at}", client.quota_request_percentage)
        for client in clients
        for at in range(1, client.count + 1)
    }


class BrokerQuotas:
    """All client quotas at one broker. `handling_us` is the thread time that each request takes."""

    def __init__(self, client_entities: Mapping[str, QuotaEntity], handling_us: float) -> None:
        self._client_entities = client_entities
        self._handling_us = handling_us
        self._quotas: dict[tuple[str, str], ClientQuota] = {}

    def bandwidth_throttle_ms(self, kind: str, client_id: str, allowed: float | None, size: int, now_ms: int) -> int:
        """Count `size` bytes of a produce or fetch, and return the throttle time in milliseconds.

        `allowed` is the quota in bytes per second. If it is None, nothing is counted and the throttle time is 0.
        """
        if allowed is None:
            return 0
        return self._quota(kind, self._entity(client_id).name, allowed).throttle_ms(size, now_ms)

    def request_throttle_ms(self, client_id: str, now_ms: int) -> int:
        """Count the thread time of one request; return the throttle time in milliseconds, 0 without a quota."""
        entity = self._entity(client_id)
        if entity.request_percentage is None:
            return 0
        quota = self._quota("request", entity.name, entity.request_percentage * 10_000)
        return min(quota.throttle_ms(round(self._handling_us), now_ms), MAX_REQUEST_THROTTLE_MS)

    def with_request_quota(self, client_id: str, reply: Reply, environment: Environment) -> Reply:
        """Wrap `reply` so that thread time counts against the request quota when the response is ready, as in Kafka."""

        def later(response: Any, throttle_ms: int) -> None:
            reply(response, max(throttle_ms, self.request_throttle_ms(client_id, environment.now_ms)))

        return later

    def _entity(self, client_id: str) -> QuotaEntity:
        return self._client_entities.get(client_id) or QuotaEntity(client_id, None)

    def _quota(self, kind: str, entity: str, allowed: float) -> ClientQuota:
        return self._quotas.setdefault((kind, entity), ClientQuota(allowed))


# replication.quota.window.num and replication.quota.window.size.seconds
WINDOWS = 11
WINDOW_MS = 1000


class ReplicationQuota:
    """A limit on the bytes per second that a leader sends to throttled replicas."""

    def __init__(self, bytes_per_second: float, throttled: frozenset[TopicPartition]) -> None:
        self._bytes_per_second = bytes_per_second
        self._throttled = throttled
        self._windows: deque[tuple[int, int]] = deque()

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes sent to a throttled replica."""
        start_ms = now_ms // WINDOW_MS * WINDOW_MS
        if self._windows and self._windows[-1][0] == start_ms:
            size += self._windows.pop()[1]
        self._windows.append((start_ms, size))

    def is_exceeded(self, now_ms: int) -> bool:
        """Return whether the rate over the last `WINDOWS` windows exceeds the quota.

        A period of less than `WINDOW_MS` counts as one window.
        """
        while self._windows and self._windows[0][0] <= now_ms - WINDOWS * WINDOW_MS:
            self._windows.popleft()
        if not self._windows:
            return False
        elapsed_ms = max(WINDOW_MS, now_ms - self._windows[0][0])
        return sum(size for _, size in self._windows) * 1000 / elapsed_ms > self._bytes_per_second

    def is_throttled(self, key: TopicPartition, in_sync: bool, now_ms: int) -> bool:
        """Return whether a follower's fetch gets nothing of the partition now: never if it is in sync."""
        return not in_sync and key in self._throttled and self.is_exceeded(now_ms)


class LeaderQuota:
    """The replication quotas of one leader: one for topics, and one for each replica that an incident throttles."""

    def __init__(self, settings: Settings | None) -> None:
        # By topic and not by partition, because topics may be created while the cluster runs.
        self._topics = frozenset(settings.topics) if settings is not None else frozenset()
        self._quota = ReplicationQuota(settings.bytes_per_second, frozenset()) if settings is not None else None
        self._replicas: dict[int, ReplicationQuota] = {}

    def throttle_replica(self, replica_id: int, bytes_per_second: float) -> None:
        """Throttle a follower in each partition."""
        self._replicas[replica_id] = ReplicationQuota(bytes_per_second, frozenset())

    def end_throttle(self, replica_id: int) -> None:
        """End the throttle of a follower."""
        self._replicas.pop(replica_id, None)

    def record_sent(self, replica_id: int, key: TopicPartition, size: int, now_ms: int) -> None:
        """Count `size` bytes sent to a follower against the quotas that apply."""
        for quota in self._quotas(replica_id, key):
            quota.record(size, now_ms)

    def is_throttled(self, replica_id: int, key: TopicPartition, in_sync: bool, now_ms: int) -> bool:
        """Return whether a follower's fetch gets nothing of the partition now: never if it is in sync."""
        return not in_sync and any(quota.is_exceeded(now_ms) for quota in self._quotas(replica_id, key))

    def _quotas(self, replica_id: int, key: TopicPartition) -> list[ReplicationQuota]:
        found = [self._replicas.get(replica_id), self._quota if key.topic in self._topics else None]
        return [quota for quota in found if quota is not None]
