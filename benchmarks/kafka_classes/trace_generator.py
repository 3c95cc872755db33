"""Generates the benchmark's traces of producers, consumers and followers, line by line."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Shape:
    """Parameters of a trace. Numbers are drawn uniformly from ranges; `min_bytes` uniformly in its logarithm."""

    operations: int
    partitions: int
    produced: tuple[int, int] = (1, 3)  # partitions of a produce
    fetched: tuple[int, int] = (1, 7)  # partitions of a fetch
    per_second: int = 400
    fetches: float = 0.5  # fraction of the operations
    max_wait_ms: tuple[int, int] = (300, 700)
    min_bytes: tuple[int, int] = (1, 4_000)
    timeout_ms: tuple[int, int] = (200, 2_000)
    transactions: float = 0.0  # fraction of appends that reach the last stable offset after the high watermark
    specials: float = 0.0  # segment rolls, truncations and leadership changes per second
    seed: int = 1


SHAPES = {
    "ordinary-100": Shape(60_000, 100),
    "ordinary-2000": Shape(60_000, 2_000, per_second=4_000),
    "wide-100": Shape(3_000, 1_000, produced=(90, 110), fetched=(90, 110), min_bytes=(400, 400_000)),
    "wide-fetches": Shape(6_000, 1_000, produced=(10, 30), fetched=(90, 110), min_bytes=(400, 400_000)),
    # Watcher lists with thousands of entries.
    "long-in-reach": Shape(
        24_000, 4, produced=(1, 1), fetched=(1, 3), per_second=400, fetches=0.8, max_wait_ms=(1_000, 60_000),
        min_bytes=(10_000, 3_000_000), transactions=0.2, specials=0.1,
    ),
    "long-out-of-reach": Shape(
        24_000, 4, produced=(1, 1), fetched=(1, 3), per_second=400, fetches=0.8, max_wait_ms=(10, 60_000),
        min_bytes=(1 << 30, 1 << 30),
    ),
}  # fmt: skip


def lines(shape: Shape) -> Iterator[str]:
    """Yield the lines of a trace (format: see `trace`)."""
    yield from _Generator(shape).lines()


@dataclass
class _Partition:
    name: str
    end: int = 0
    watermark: int = 0
    stable: int = 0
    begins: list[int] = field(default_factory=list)  # base offsets of the batches, which truncations cut at
    truncated: int = 0  # number of truncations


class _Generator:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._random = Random(shape.seed)
        self._partitions = [_Partition(str(number)) for number in range(shape.partitions)]
        # Future changes: (t, order, what, partition, offset, the partition's truncations when it was scheduled).
        self._later: list[tuple[int, int, str, int, int, int]] = []
        self._order = 0

    def lines(self) -> Iterator[str]:
        shape, random = self._shape, self._random
        now, special = 1.0, self._gap(shape.specials)
        for number in range(shape.operations):
            now += self._gap(shape.per_second)
            yield from self._due(int(now))
            while special <= now:
                yield self._special(int(now))
                special += self._gap(shape.specials)
            if random.random() < shape.fetches:
                yield self._fetch(int(now), number)
            else:
                yield from self._produce(int(now), number)
        yield from self._due(None)

    def _gap(self, per_second: float) -> float:
        return self._random.expovariate(per_second / 1000) if per_second else float("inf")

    def _some(self, sizes: tuple[int, int]) -> list[_Partition]:
        return self._random.sample(self._partitions, self._random.randint(*sizes))

    def _produce(self, t: int, number: int) -> Iterator[str]:
        random, parts = self._random, []
        for partition in self._some(self._shape.produced):
            partition.begins.append(partition.end)
            partition.end += random.randint(1, 20)
            yield f"A\t{t}\t{partition.name}\t{partition.end}\t{random.randint(200, 2_500)}\n"
            replicated = t + 2 + int(random.lognormvariate(1.5, 0.7))
            open_ms = 50 + int(random.expovariate(0.01)) if random.random() < self._shape.transactions else 0
            for what, at in (("S", replicated + open_ms), ("H", replicated)):
                self._order += 1
                place = int(partition.name)
                heapq.heappush(self._later, (at, self._order, what, place, partition.end, partition.truncated))
            parts.append(f"{partition.name}:{partition.end}")
        yield f"P\t{t}\t{number}\t{random.randint(*self._shape.timeout_ms)}\t{','.join(parts)}\n"

    def _fetch(self, t: int, number: int) -> str:
        random, shape = self._random, self._shape
        reader = random.choices(("hw", "leo", "lso"), (6, 3, 1))[0]
        parts = []
        for partition in self._some(shape.fetched):
            end = {"hw": partition.watermark, "leo": partition.end, "lso": partition.stable}[reader]
            parts.append(f"{partition.name}:{end}:{1 << 20 if random.random() < 0.8 else 4_000}")
        low, high = shape.min_bytes
        least = int(low * (high / low) ** random.random())
        return f"F\t{t}\t{number}\t{random.randint(*shape.max_wait_ms)}\t{least}\t{reader}\t{','.join(parts)}\n"

    def _due(self, now: int | None) -> Iterator[str]:
        while self._later and (now is None or self._later[0][0] <= now):
            t, _, what, place, offset, truncated = heapq.heappop(self._later)
            partition = self._partitions[place]
            if truncated != partition.truncated:
                continue
            if what == "S" and offset > partition.stable:
                partition.stable = offset
            elif what == "H" and offset > partition.watermark:
                partition.watermark = offset
            else:
                continue
            yield f"{what}\t{t}\t{partition.name}\t{offset}\n"

    def _special(self, t: int) -> str:
        random = self._random
        partition = random.choice(self._partitions)
        what = random.choice("RRTL")
        if what == "R":
            return f"R\t{t}\t{partition.name}\n"
        if what == "L":
            return f"L\t{t}\t{partition.name}\t{random.choice(('online', 'online', 'online', 'moved', 'offline'))}\n"
        kept = max(0, len(partition.begins) - random.randint(1, 3))
        offset = partition.begins[kept] if partition.begins else 0
        del partition.begins[kept:]
        partition.end, partition.truncated = offset, partition.truncated + 1
        partition.watermark, partition.stable = min(partition.watermark, offset), min(partition.stable, offset)
        return f"T\t{t}\t{partition.name}\t{offset}\n"
