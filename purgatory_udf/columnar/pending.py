"""What waits to be settled: finished watches whose operation has others still open, and the timelines they need."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from purgatory_udf.columnar.codec import pack, unpack
from purgatory_udf.columnar.frame import Array, Frame
from purgatory_udf.columnar.moments import in_order
from purgatory_udf.columnar.partition import ENTRIES, WALKS, Step
from purgatory_udf.columnar.settle import Settled, complete, settle
from purgatory_udf.columnar.watches import ARRIVAL, DONE, FRESH
from purgatory_udf.loop.words import Code

_FRAMES = ("done", "entries", "fresh", "walks")


@dataclass
class Packet:
    """What calls of `step` hand on: to the buckets of operations, and the walks of their lists to the gauges."""

    keys: list[str] = field(default_factory=list)
    done: Frame = field(default_factory=DONE.empty)
    entries: Frame = field(default_factory=ENTRIES.empty)
    fresh: Frame = field(default_factory=FRESH.empty)
    walks: Frame = field(default_factory=WALKS.empty)

    def compact(self) -> Packet:
        """Only the keys that occur, and nothing of what the rows were taken from."""
        frames = {name: getattr(self, name) for name in _FRAMES}
        occurs = np.zeros(len(self.keys), dtype=bool)
        for frame in frames.values():
            occurs[frame.key] = True
        number = np.cumsum(occurs) - 1
        names = [self.keys[key] for key in np.flatnonzero(occurs)]
        return Packet(names, *(frame.with_columns(key=number[frame.key]).whole() for frame in frames.values()))

    def to_bytes(self) -> bytes:
        """Only the keys that occur travel along."""
        mine = self.compact()
        frames = {name: getattr(mine, name) for name in _FRAMES}
        return pack({"keys": Frame({"name": np.array(mine.keys, dtype=object)}), **frames})

    @staticmethod
    def from_bytes(value: bytes) -> Packet:
        frames = unpack(value)
        return Packet(list(frames["keys"].name), *(frames[name] for name in _FRAMES))


def bucket_of(operations: Array, buckets: int) -> Array:
    """Which bucket settles an operation; ids are often regular, so they are mixed first."""
    mixed = operations.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(buckets)).astype(np.int64)


def packet_of(found: Step, keys: list[str]) -> Packet | None:
    """All that a call hands on."""
    if not len(found.done) and not len(found.walks):
        return None
    return Packet(keys, found.done, found.entries, found.fresh, found.walks)


def by_bucket(packet: Packet, buckets: int) -> dict[int, Packet]:
    """Ended watches by bucket, each with the timelines that its fetches over several keys need."""
    bucket = bucket_of(packet.done.op, buckets)
    fresh_bucket = bucket_of(packet.fresh.op, buckets)
    result = {}
    for number in np.flatnonzero(np.bincount(bucket)):
        mine = packet.done.take(bucket == number)
        entries = _part(packet.entries, mine)
        result[int(number)] = Packet(packet.keys, mine, entries, packet.fresh.take(fresh_bucket == number))
    return result


def _part(entries: Frame, watches: Frame) -> Frame:
    """The stretch of each key's timeline that these watches waited through."""
    several = watches.take((watches.n > 1) & (watches.code == Code.FETCH) & (watches.how != ARRIVAL))
    if not len(several) or not len(entries):
        return entries.take(slice(0, 0))
    keys = int(max(several.key.max(), entries.key.max())) + 1
    since, until = np.full(keys, 2**62, dtype=np.int64), np.full(keys, -1, dtype=np.int64)
    np.minimum.at(since, several.key, several.t)
    np.maximum.at(until, several.key, several.deadline * 1000)
    return entries.take((entries.t >= since[entries.key]) & (entries.t < until[entries.key]))


@dataclass
class Pending:
    """One bucket's state."""

    packet: Packet = field(default_factory=Packet)

    def add(self, arrived: list[Packet]) -> tuple[Settled, list[str]]:
        """Take packets in; settle every operation that is whole; keep the rest. Keys are those of the result."""
        merged = merge([self.packet, *arrived])
        whole = complete(merged.done)
        result = settle(merged.done.take(whole), merged.entries, merged.fresh)
        rest = merged.done.take(~whole)
        kept = np.isin(merged.fresh.op, rest.op)
        left = Packet(merged.keys, rest, _part(merged.entries, rest), merged.fresh.take(kept))
        self.packet = left.compact() if len(rest) else Packet()
        return result, merged.keys

    def to_bytes(self) -> bytes:
        return self.packet.to_bytes()

    @staticmethod
    def from_bytes(value: bytes) -> Pending:
        return Pending(Packet.from_bytes(value))


def merge(parts: list[Packet]) -> Packet:
    """Packets of different calls as one, with one numbering of keys."""
    names: dict[str, int] = {}
    frames: dict[str, list[Frame]] = {name: [] for name in _FRAMES}
    for part in parts or [Packet()]:
        number = np.array([names.setdefault(name, len(names)) for name in part.keys], dtype=np.int64)
        for name, into in frames.items():
            frame: Frame = getattr(part, name)
            into.append(frame.with_columns(key=number[frame.key]) if len(frame) else frame)
    entries = Frame.concat(frames["entries"])
    entries = in_order(entries)
    if len(entries) > 1:
        # A stretch that watches of two calls waited through has come twice.
        same = np.ones(len(entries) - 1, dtype=bool)
        for name in ("key", "t", "seq", "sub"):
            column = entries.columns[name]
            same &= column[1:] == column[:-1]
        entries = entries.take(np.append(True, ~same))
    joined = {name: Frame.concat(several) for name, several in frames.items()}
    return Packet(list(names), **(joined | {"entries": entries}))
