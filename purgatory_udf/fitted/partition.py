"""A partition at its leader, by its batches: how far its log, its followers and its high watermark are.

Positions count batches. `sizes[n]` is what the first n batches come to in bytes, so what lies between two positions is
a difference.
"""

from __future__ import annotations

from collections.abc import Iterable


class PlayedPartition:
    def __init__(self, topic: str, partition: int, leader: int, followers: Iterable[int]) -> None:
        self.topic = topic
        self.partition = partition
        self.leader = leader
        self.sizes = [0]
        self.appended_ms: list[float] = []
        self.followed = dict.fromkeys(followers, 0)
        self.high_watermark = 0

    @property
    def end(self) -> int:
        return len(self.appended_ms)

    def append(self, size: int, now_ms: float) -> bool:
        """Whether the high watermark rose by it: it does where nobody follows."""
        self.sizes.append(self.sizes[-1] + size)
        self.appended_ms.append(now_ms)
        return self._raise_high_watermark()

    def follower_reached(self, replica: int, position: int) -> bool:
        """Whether the high watermark rose by it."""
        if self.followed[replica] >= position:
            return False
        self.followed[replica] = position
        return self._raise_high_watermark()

    def _raise_high_watermark(self) -> bool:
        least = min(self.followed.values(), default=self.end)
        if least <= self.high_watermark:
            return False
        self.high_watermark = least
        return True
