"""The gauges of a coordinator's two purgatories, from what its groups' calls have found.

Each operation is on one list: that of its group (rounds and syncs) or of its member's sessions. The check that
completes it takes it off; if its timer ends it, it stays until the list's next walk, or a purge.

One thing is not known here. Where an operation has no delay at all and its purgatory's wheels lag, its timer runs not
with the event but when the reaper wakes after it; and what that sets off in the other purgatory may be one purge later
there. Only a session or an initial delay of 0 ms, which no broker has by default, and an interval of few operations
can show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from purgatory_udf.frames.frame import Frame, FrameLayout
from purgatory_udf.groups.chronicle import Watching
from purgatory_udf.groups.packet import unpacked
from purgatory_udf.groups.words import KINDS
from purgatory_udf.loop.words import Code
from purgatory_udf.timeline.gauges import GAUGES, Lives, readings

# Among the reapers of a coordinator.
TURNS = {Code.HEARTBEAT: 0, Code.REBALANCE: 1}

_LIST_OF = {"heartbeat": Watching.SESSIONS, "sync": Watching.SYNCS}
_LIST_OF_KIND = np.array([_LIST_OF.get(kind, Watching.JOINS) for kind in KINDS], dtype=np.int64)

# `key` is a place in a list of names.
LIVES = FrameLayout(("key", "t", "seq", "sub", "end_t", "end_seq", "end_sub", "deadline", "triggered"))
WALKED = FrameLayout(("key", "t", "seq", "sub"))


def by_purgatory(packets: Sequence[bytes]) -> Iterator[tuple[int, Code, list[str], Frame, Frame]]:
    """Of each broker's purgatories: the names of the lists, `LIVES` of what waited, and `WALKED` in vain."""
    found = unpacked(packets, "ended", "walks")
    ended, walks = found["ended"].take(found["ended"].watched > 0), found["walks"]
    ended = ended.with_columns(list=_LIST_OF_KIND[ended.kind])
    for code in TURNS:
        rounds = code is Code.REBALANCE
        mine = ended.take((ended.list != Watching.SESSIONS) == rounds)
        walked = walks.take((walks.list != Watching.SESSIONS) == rounds)
        for broker in np.unique(np.concatenate([mine.broker, walked.broker])).tolist():
            here, there = mine.take(mine.broker == broker), walked.take(walked.broker == broker)
            numbers: dict[tuple[str, int, str], int] = {}
            keys = [_numbered(frame, numbers) for frame in (here, there)]
            names = [f"{group}/{number}/{member_id}" for group, number, member_id in numbers]
            yield broker, code, names, keys[0].only(LIVES.names), keys[1].only(WALKED.names)


def _numbered(frame: Frame, numbers: dict[tuple[str, int, str], int]) -> Frame:
    lists = zip(frame.group.tolist(), frame.list.tolist(), frame.member_id.tolist(), strict=True)
    places = [numbers.setdefault(one, len(numbers)) for one in lists]
    return frame.with_columns(key=np.array(places, dtype=np.int64))


def group_gauges(lives: Frame, walked: Frame, code: Code, purge_interval: int, first_ms: int, last_ms: int) -> Frame:
    """As `timeline.gauges.gauges`, of one broker's purgatory; keys of all parts count in one list of names."""
    if not len(lives):
        return GAUGES.empty()
    lives = lives.take(np.lexsort((lives.sub, lives.seq, lives.t)))
    began = lives.only(("t", "seq", "sub"))
    # A deadline in whole milliseconds may lie before the beginning; nothing ends before that.
    ended = Frame({"t": np.maximum(lives.t, lives.end_t), "seq": lives.end_seq, "sub": lives.end_sub})
    entries = Frame({"key": lives.key, "owner": np.arange(len(lives))})
    by_check = lives.triggered > 0
    walks = Frame.concat([walked, ended.with_columns(key=lives.key).take(by_check).only(WALKED.names)])
    lived = Lives(began, ended, lives.deadline, ~by_check)
    return readings(lived, entries, walks, purge_interval, first_ms, last_ms, TURNS[code])
