"""All coordinators' purgatories of a run between two batches, as one value; and what a batch reads of them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from purgatory_udf.frames.frame import Frame
from purgatory_udf.groups.gauges import CoordinatorPurgatory
from purgatory_udf.groups.waits import ToldWaits, by_purgatory
from purgatory_udf.loop.words import FOREVER, PURGATORIES, Code
from purgatory_udf.tables import PURGATORY_GAUGES, TIMESTAMP

_LENGTH = struct.Struct("<Q")


@dataclass
class Ledger:
    """`began_ms`: when the trace began. `end_ms`: when it ended, if it has; nothing comes after all groups are told
    that, and what would happen later is what is left open."""

    interval: int
    began_ms: int
    end_ms: int | None = None
    left_open: int = 0
    purgatories: dict[tuple[int, Code], CoordinatorPurgatory] = field(default_factory=dict)

    @property
    def open(self) -> int:
        return sum(purgatory.open for purgatory in self.purgatories.values())

    def tell(self, values: Iterable[bytes], watermark_ms: int, run_id: str) -> pa.Table:
        """Rows of `purgatory_gauges`: all that is known for good once groups have been called up to the watermark."""
        waits = by_purgatory(values)
        for broker, code in waits:
            if (broker, code) not in self.purgatories:
                self.purgatories[broker, code] = CoordinatorPurgatory(code, self.interval, self.began_ms)
        over = self.end_ms is not None and watermark_ms > self.end_ms
        self.left_open += sum(map(self._left, waits.values()))
        tables = [PURGATORY_GAUGES.empty_table()]
        for (broker, code), purgatory in sorted(self.purgatories.items()):
            readings = purgatory.tell(waits.get((broker, code)), FOREVER if over else watermark_ms)
            tables.append(_rows(run_id, broker, code, readings))
        # Spark loses rows of a table that has empty chunks.
        return pa.concat_tables(tables).combine_chunks()

    def _left(self, waits: ToldWaits) -> int:
        if self.end_ms is None:
            return 0
        ended = waits.ended
        return int(((ended.t // 1000 <= self.end_ms) & (ended.end_t // 1000 > self.end_ms)).sum())

    def standing(self) -> list[tuple[int, str, int, int]]:
        """Of each purgatory its broker, its name, and both gauges as they are."""
        return [
            (broker, PURGATORIES[code], int(purgatory.record["watched"][0]), int(purgatory.record["delayed"][0]))
            for (broker, code), purgatory in sorted(self.purgatories.items())
        ]

    def to_bytes(self) -> bytes:
        head = json.dumps({"left_open": self.left_open, "of": list(self.purgatories)}).encode()
        parts = [head, *(purgatory.to_bytes() for purgatory in self.purgatories.values())]
        return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))

    def take_up(self, value: bytes) -> None:
        """Go on from what was kept."""
        parts = _parts(value)
        head = json.loads(next(parts))
        self.left_open = head["left_open"]
        self.purgatories = {
            (broker, Code(code)): CoordinatorPurgatory.from_bytes(next(parts)) for broker, code in head["of"]
        }


def _parts(value: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(value):
        (length,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size
        yield value[at : at + length]
        at += length


def _rows(run_id: str, broker: int, code: Code, readings: Frame) -> pa.Table:
    count = len(readings)
    columns = {
        "run_id": pa.repeat(pa.scalar(run_id, pa.string()), count),
        "broker": pa.array(np.full(count, broker, dtype=np.int32)),
        "purgatory": pa.repeat(pa.scalar(PURGATORIES[code], pa.string()), count),
        "at": pa.array(readings.at_ms * 1000, pa.int64()).view(TIMESTAMP),
        **{name: pa.array(readings.columns[name], pa.int64()) for name in ("watched", "delayed", "purged")},
    }
    return pa.table([columns[name] for name in PURGATORY_GAUGES.names], schema=PURGATORY_GAUGES)
