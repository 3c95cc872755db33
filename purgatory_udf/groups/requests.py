"""Requests of several groups on their way to the groups' calls: rows, and the keys of the groups they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.frames.codec import pack, unpack
from purgatory_udf.frames.frame import Array, Frame, FrameLayout
from purgatory_udf.groups.rows import COLUMNS, ROWS, rows_of
from purgatory_udf.groups.words import API_OF

# `group` is a place among the keys.
_ROWS = FrameLayout((*ROWS.numbers, "group"), ROWS.texts)


@dataclass(frozen=True)
class Requests:
    """`rows` are in order by group, and within a group by (time, seq)."""

    keys: list[str]
    rows: Frame

    @classmethod
    def of(cls, events: pa.Table) -> Requests:
        """The group events among these; every other event is left out."""
        events = events.select(COLUMNS).filter(pc.is_in(events["type"], pa.array(API_OF)))
        if not events.num_rows:
            return cls([], _ROWS.empty())
        broker = pc.fill_null(events["broker"], 0).cast(pa.string())
        keys = pc.binary_join_element_wise(broker, events["group"], "/").combine_chunks().dictionary_encode()
        return cls(keys.dictionary.to_pylist(), _sorted(rows_of(events).with_columns(group=keys.indices.to_numpy())))

    @classmethod
    def together(cls, parts: Sequence[Requests]) -> Requests:
        """Several pieces as one, each key once."""
        if len(parts) == 1:
            return parts[0]
        number: dict[str, int] = {}
        frames = [_ROWS.empty()]
        for part in parts:
            places: Array = np.array([number.setdefault(key, len(number)) for key in part.keys], dtype=np.int64)
            frames.append(part.rows.with_columns(group=places[part.rows.group]) if len(part.rows) else part.rows)
        return cls(list(number), _sorted(Frame.concat(frames)))

    def by_group(self) -> Iterator[tuple[str, Frame]]:
        """Each group that has any, with its rows."""
        group = self.rows.group
        begins = np.flatnonzero(np.diff(group, prepend=-1)).tolist()
        for begin, end in pairwise([*begins, len(group)]):
            yield self.keys[int(group[begin])], self.rows.take(slice(begin, end))

    def where(self, rows: Array) -> Requests:
        return Requests(self.keys, self.rows.take(rows))

    def apart(self, name: Callable[[str], str]) -> Iterator[tuple[str, Requests]]:
        """The same, shared out by a name made of each group's key."""
        places: dict[str, list[int]] = {}
        for place, key in enumerate(self.keys):
            places.setdefault(name(key), []).append(place)
        group = self.rows.group
        borders = np.searchsorted(group, np.arange(len(self.keys) + 1))
        for shard, mine in places.items():
            if len(mine) == 1:
                rows = self.rows.take(slice(borders[mine[0]], borders[mine[0] + 1]))
                number = np.zeros(len(rows), dtype=np.int64)
            else:
                counts = [borders[place + 1] - borders[place] for place in mine]
                rows = self.rows.take(np.concatenate([np.arange(borders[at], borders[at + 1]) for at in mine]))
                number = np.repeat(np.arange(len(mine)), counts)
            yield shard, Requests([self.keys[place] for place in mine], rows.with_columns(group=number))

    def to_bytes(self) -> bytes:
        return pack({"keys": Frame({"key": np.array(self.keys, dtype=object)}), "rows": self.rows})

    @classmethod
    def from_bytes(cls, value: bytes) -> Requests:
        frames = unpack(value)
        return cls(frames["keys"].key.tolist(), frames["rows"])


def _sorted(rows: Frame) -> Frame:
    return rows.take(np.lexsort((rows.seq, rows.t, rows.group)))
