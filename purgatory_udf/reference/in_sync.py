"""Which followers keep up with their leader: Kafka's `replica.lag.time.max.ms`, for whoever simulates a leader.

A replayed trace says itself who is in sync; this says who would be.
"""

from __future__ import annotations

from dataclasses import dataclass

# Since Kafka 2.5; 10 s before. Looked at every half of it.
REPLICA_LAG_TIME_MAX_MS = 30_000


@dataclass(slots=True)
class Follower:
    """How far a follower has fetched, and when it last had everything that the leader had."""

    log_end: int
    caught_up_ms: int
    fetched_ms: int
    leader_end_when_fetched: int

    def fetched(self, fetch_offset: int, leader_end: int, now_ms: int) -> None:
        """A fetch from `fetch_offset` says that the follower has all before it.

        It need not reach the leader's end, which moves: to have by this fetch what there was at the last one is to have
        been caught up then.
        """
        if fetch_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.leader_end_when_fetched:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end = fetch_offset
        self.leader_end_when_fetched = leader_end
        self.fetched_ms = now_ms


class InSyncReplicas:
    """The in-sync set of one partition at its leader."""

    def __init__(
        self, leader: int, followers: list[int], now_ms: int, lag_time_max_ms: int = REPLICA_LAG_TIME_MAX_MS
    ) -> None:
        self.isr: tuple[int, ...] = (leader, *followers)
        self._leader = leader
        self._lag_time_max_ms = lag_time_max_ms
        self._followers = {replica_id: Follower(0, now_ms, now_ms, 0) for replica_id in followers}

    def fetched(self, replica_id: int, fetch_offset: int, leader_end: int, high_watermark: int, now_ms: int) -> bool:
        """A follower fetches; whether that takes it back into the set: once it has reached the high watermark."""
        self._followers[replica_id].fetched(fetch_offset, leader_end, now_ms)
        if replica_id in self.isr or fetch_offset < high_watermark:
            return False
        self.isr = (*self.isr, replica_id)
        return True

    def shrink(self, leader_end: int, now_ms: int) -> bool:
        """Drop the followers that have not been caught up for too long; whether there were any."""
        kept = tuple(
            replica_id
            for replica_id in self.isr
            if replica_id == self._leader or self._keeps_up(replica_id, leader_end, now_ms)
        )
        shrunk = kept != self.isr
        self.isr = kept
        return shrunk

    def _keeps_up(self, replica_id: int, leader_end: int, now_ms: int) -> bool:
        follower = self._followers[replica_id]
        return follower.log_end == leader_end or now_ms - follower.caught_up_ms <= self._lag_time_max_ms
