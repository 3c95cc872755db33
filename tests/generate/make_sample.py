"""Creates the demo's trace, conf/sample/trace.jsonl: six seconds of the brokers of a web shop.

    python tests/generate/make_sample.py > conf/sample/trace.jsonl

Two checkout services produce to `orders` (acks=all) at broker 1; brokers 2 and 3 replicate it. The consumers are
billing, fraud-check (read_committed) and warehouse (large `min_bytes`); returns-desk waits for returns that never
arrive. From 2.2 s to 4.4 s broker 3 stalls, so high watermarks stop rising, produces time out and consumers get no
records. At 5.2 s partition 2 moves to broker 2. A topic is created, and old orders are deleted.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

BEGIN_US = 1_772_442_000_000_000  # 2026-03-02T09:00:00Z
END_MS = 6_000
STALL_MS = (2_200, 4_400)
MOVE_MS = 5_200


@dataclass
class PartitionLog:
    """Log of a partition at its leader: batches, followers' offsets, high watermark and last stable offset."""

    topic: str
    partition: int
    leader: int
    end: int = 0
    watermark: int = 0
    stable: int = 0
    position: dict[int, int] = field(default_factory=lambda: {0: 0})
    reached: dict[int, int] = field(default_factory=dict)
    transaction_open: bool = False

    def append(self, records: int, size: int) -> None:
        before = self.position[self.end]
        self.end += records
        self.position[self.end] = before + size

    def replicated(self, broker: int, offset: int) -> None:
        self.reached[broker] = offset
        followers = [self.reached.get(other, 0) for other in (1, 2, 3) if other != self.leader]
        self.watermark = max(self.watermark, min(self.end, *followers))


@dataclass
class Fetcher:
    """A client that fetches in a loop, with a pause of a few milliseconds after each response."""

    name: str
    broker: int
    logs: list[PartitionLog]
    replica_id: int = -1
    committed: bool = False
    min_bytes: int = 1
    max_wait_ms: int = 500
    pause_ms: tuple[float, float] = (2.0, 6.0)
    offsets: list[int] = field(default_factory=list)
    waiting: int | None = None  # number of the fetch that waits for a response
    fetches: int = 0

    def readable(self, log: PartitionLog) -> int:
        if self.replica_id >= 0:
            return log.end
        return min(log.watermark, log.stable) if self.committed else log.watermark

    def bytes_ready(self) -> int:
        pairs = zip(self.logs, self.offsets, strict=True)
        return sum(log.position[self.readable(log)] - log.position[offset] for log, offset in pairs)

    def advance(self) -> None:
        self.offsets = [max(offset, self.readable(log)) for log, offset in zip(self.logs, self.offsets, strict=True)]


class Shop:
    """The simulation: a queue of actions by time, and the lines of the trace."""

    def __init__(self, seed: int = 20260302) -> None:
        self.random = random.Random(seed)
        self.lines: list[dict[str, Any]] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_us = 0
        self._requests = itertools.count(1)
        self.orders = [PartitionLog("orders", partition, leader=1) for partition in range(3)]
        self.returns = PartitionLog("returns", 0, leader=1)
        self.fetchers = self._clients(self.orders)

    def _clients(self, logs: list[PartitionLog]) -> list[Fetcher]:
        followers = [Fetcher(f"replica-{broker}", 1, list(logs), replica_id=broker) for broker in (2, 3)]
        return [
            *followers,
            Fetcher("billing", 1, list(logs), pause_ms=(4, 12)),
            Fetcher("fraud-check", 1, [logs[0]], committed=True, pause_ms=(6, 20)),
            Fetcher("warehouse", 1, list(logs), min_bytes=32_768, max_wait_ms=800, pause_ms=(10, 30)),
            Fetcher("returns-desk", 1, [self.returns], pause_ms=(1, 3)),
        ]

    def run(self) -> list[dict[str, Any]]:
        for log in [*self.orders, self.returns]:
            self._lead(log, epoch=7)
            for change in ("log_end", "high_watermark"):
                self._change(log, change, offset=0)
        self._change(self.orders[0], "last_stable", offset=0)
        for fetcher in self.fetchers:
            fetcher.offsets = [0] * len(fetcher.logs)
            self._later(self.random.uniform(1, 40), partial(self._fetch, fetcher))
        for name, every in (("checkout-web", 24.0), ("checkout-app", 32.0)):
            self._later(self.random.uniform(5, 30), partial(self._produce, name, every))
        self._later(700, self._create_topic)
        self._later(1_500, self._delete_old)
        self._later(MOVE_MS, self._move)
        while self._queue:
            self._now_us, _, action = heapq.heappop(self._queue)
            action()
        return self.lines

    def _later(self, ms: float, action: Callable[[], None]) -> None:
        at = self._now_us + int(ms * 1000)
        if at <= END_MS * 1000:
            heapq.heappush(self._queue, (at, next(self._order), action))

    def _write(self, type: str, broker: int, **fields: Any) -> None:
        self.lines.append({"time_us": BEGIN_US + self._now_us, "type": type, "broker": broker, **fields})

    def _request(self, client: str) -> dict[str, str]:
        return {"request_id": f"{client}-{next(self._requests)}", "client_id": client}

    def _change(self, log: PartitionLog, change: str, **fields: Any) -> None:
        place = {"topic": log.topic, "partition": log.partition}
        self._write("partition", log.leader, **place, change=change, **fields)

    def _lead(self, log: PartitionLog, epoch: int) -> None:
        replicas = [log.leader, *(broker for broker in (1, 2, 3) if broker != log.leader)]
        self._change(log, "leader", leader_epoch=epoch, replicas=replicas, isr=replicas, min_isr=2)

    def _stalled(self, fetcher: Fetcher) -> bool:
        return fetcher.replica_id == 3 and STALL_MS[0] <= self._now_us / 1000 < STALL_MS[1]

    def _fetch(self, fetcher: Fetcher) -> None:
        if self._stalled(fetcher):
            self._later(STALL_MS[1] - self._now_us / 1000, partial(self._fetch, fetcher))
            return
        partitions = [
            {"topic": log.topic, "partition": log.partition, "fetch_offset": offset, "max_bytes": 1_048_576}
            for log, offset in zip(fetcher.logs, fetcher.offsets, strict=True)
        ]
        self._write(
            "fetch",
            fetcher.broker,
            **self._request(fetcher.name),
            replica_id=fetcher.replica_id,
            max_wait_ms=fetcher.max_wait_ms,
            min_bytes=fetcher.min_bytes,
            max_bytes=52_428_800,
            isolation="read_committed" if fetcher.committed else "read_uncommitted",
            partitions=partitions,
        )
        fetcher.fetches += 1
        fetcher.waiting = number = fetcher.fetches
        if fetcher.replica_id >= 0:
            for log, offset in zip(fetcher.logs, fetcher.offsets, strict=True):
                log.replicated(fetcher.replica_id, offset)
        self._later(fetcher.max_wait_ms, partial(self._answer, fetcher, number))
        self._settle()

    def _answer(self, fetcher: Fetcher, number: int) -> None:
        if fetcher.waiting == number:
            fetcher.waiting = None
            fetcher.advance()
            self._later(self.random.uniform(*fetcher.pause_ms), partial(self._fetch, fetcher))

    def _settle(self) -> None:
        for fetcher in self.fetchers:
            if fetcher.waiting is not None and fetcher.bytes_ready() >= fetcher.min_bytes:
                self._answer(fetcher, fetcher.waiting)

    def _produce(self, name: str, every: float) -> None:
        chosen = self.random.sample(self.orders, k=self.random.choice((1, 1, 1, 2)))
        for leader in sorted({log.leader for log in chosen}):
            batches = []
            for log in sorted((log for log in chosen if log.leader == leader), key=lambda log: log.partition):
                records = self.random.randint(1, 6)
                size = sum(self.random.randint(180, 420) for _ in range(records))
                place = {"topic": log.topic, "partition": log.partition}
                batches.append({**place, "base_offset": log.end, "last_offset": log.end + records - 1, "bytes": size})
                log.append(records, size)
            request = self._request(name)
            self._write("produce", leader, **request, acks=-1, timeout_ms=1_500, partitions=batches)
        # checkout-app produces in transactions; only its last one may be uncommitted.
        first = self.orders[0]
        if name == "checkout-app" and first in chosen:
            self._later(self.random.uniform(15, 60), self._commit)
        elif not first.transaction_open and first in chosen:
            self._commit()
        first.transaction_open |= name == "checkout-app" and first in chosen
        self._settle()
        self._later(self.random.expovariate(1 / every), partial(self._produce, name, every))

    def _commit(self) -> None:
        log = self.orders[0]
        log.transaction_open = False
        if log.end > log.stable:
            log.stable = log.end
            self._change(log, "last_stable", offset=log.stable)
        self._settle()

    def _create_topic(self) -> None:
        topics = [{"topic": "refunds", "partitions": 2}]
        self._write("create_topics", 1, **self._request("platform-admin"), timeout_ms=5_000, topics=topics)
        for partition, ms in ((0, 38.0), (1, 91.5)):
            log = PartitionLog("refunds", partition, leader=partition + 1)
            self._later(ms, partial(self._lead, log, epoch=0))

    def _delete_old(self) -> None:
        log = self.orders[1]
        old = log.watermark // 2
        partitions = [{"topic": log.topic, "partition": log.partition, "offset": old}]
        self._write("delete_records", 1, **self._request("privacy-job"), timeout_ms=2_000, partitions=partitions)
        self._later(212, partial(self._change, log, "log_start", offset=old))

    def _move(self) -> None:
        """Move partition 2 from broker 1 to broker 2, first at the old leader, then at the new one."""
        log = self.orders[2]
        self._change(log, "not_leader")
        log.leader, end, watermark = 2, log.end, log.watermark
        affected = [fetcher for fetcher in self.fetchers if log in fetcher.logs]
        for fetcher in affected:
            at = fetcher.logs.index(log)
            del fetcher.logs[at], fetcher.offsets[at]
            if fetcher.waiting is not None:
                self._answer(fetcher, fetcher.waiting)

        def lead() -> None:
            log.reached = {}
            self._change(log, "log_end", offset=end, bytes=log.position[end])
            self._change(log, "high_watermark", offset=watermark)
            self._lead(log, epoch=8)
            for name, replica in (("replica-1", 1), ("replica-3", 3), ("billing", -1)):
                fetcher = Fetcher(name, 2, [log], replica, offsets=[end if replica >= 0 else watermark])
                self.fetchers.append(fetcher)
                self._later(self.random.uniform(5, 25), partial(self._fetch, fetcher))

        self._later(46, lead)


def sample() -> str:
    """Return the trace as JSON Lines."""
    return "".join(json.dumps(line) + "\n" for line in Shop().run())


if __name__ == "__main__":
    sys.stdout.write(sample())
