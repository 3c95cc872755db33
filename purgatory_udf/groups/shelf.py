"""Kept groups by key, as one value: a single group, or all of a shard. Only what is taken out is ever looked into.

A value that another version wrote is refused, never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from purgatory_udf.errors import UserError
from purgatory_udf.frames.codec import pack, unpack
from purgatory_udf.frames.frame import Frame
from purgatory_udf.groups.kept import SESSIONS, KeptGroup
from purgatory_udf.groups.snapshot import from_text, to_text
from purgatory_udf.groups.words import FOREVER

VERSION = 4


class Shelf:
    """Of each group its text, its sessions, and when its next timer runs."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._sessions: dict[str, Frame] = {}
        self._deadlines: dict[str, int] = {}
        self._states: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def next_deadline_ms(self) -> int:
        return min(self._deadlines.values(), default=FOREVER)

    @property
    def state(self) -> str | None:
        """Of a single group, its state."""
        return next(iter(self._states.values())) if len(self._states) == 1 else None

    @property
    def sessions(self) -> int:
        return sum(map(len, self._sessions.values()))

    def due(self, by_ms: int) -> Iterator[str]:
        """Groups of which a timer runs by then."""
        return (key for key, deadline in self._deadlines.items() if deadline <= by_ms)

    def take(self, key: str) -> KeptGroup:
        """What is kept of this group; nothing yet, if it is new."""
        text = self._texts.get(key)
        return KeptGroup() if text is None else from_text(text, self._sessions[key], key)

    def put(self, key: str, kept: KeptGroup) -> None:
        self._texts[key] = to_text(kept)
        self._sessions[key] = kept.sessions
        self._deadlines[key] = kept.next_deadline_ms()
        self._states[key] = kept.state

    def to_bytes(self) -> bytes:
        groups = {
            "version": np.full(len(self), VERSION, dtype=np.int64),
            "sessions": np.array([len(self._sessions[key]) for key in self._texts], dtype=np.int64),
            "deadline": np.array(list(self._deadlines.values()), dtype=np.int64),
            "key": np.array(list(self._texts), dtype=object),
            "state": np.array(list(self._states.values()), dtype=object),
            "text": np.array(list(self._texts.values()), dtype=object),
        }
        sessions = Frame.concat(list(self._sessions.values())) if self._sessions else SESSIONS.empty()
        return pack({"groups": Frame(groups), "sessions": sessions})

    @classmethod
    def from_bytes(cls, value: bytes) -> Shelf:
        frames = unpack(value)
        groups, sessions = frames["groups"], frames["sessions"].only(SESSIONS.names)
        shelf, begin = cls(), 0
        names = ("version", "sessions", "deadline", "key", "state", "text")
        for version, count, deadline, key, state, text in zip(
            *(groups.columns[name].tolist() for name in names), strict=True
        ):
            if version != VERSION:
                raise UserError(
                    f"state of group {key}: written in format {version}, this version reads format {VERSION}: "
                    "finish the run with the version that began it, or start it anew with --overwrite"
                )
            shelf._texts[key], shelf._deadlines[key], shelf._states[key] = text, deadline, state
            shelf._sessions[key] = sessions.take(slice(begin, begin + count))
            begin += count
        return shelf
