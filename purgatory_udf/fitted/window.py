"""The stretch of a recording that a scenario is fitted to: everybody is there, and has caught up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.recording import Led, Recording

# A client that was there for less of the recording than this does not count.
PRESENT = 0.6
# What a client needs at its beginning to catch up with what it had missed.
SETTLING_MS = 2000
LEAST_MS = 5000


@dataclass(frozen=True)
class RecordingWindow:
    """Milliseconds of the recording's clock; `absent` are clients that were not there for most of it, `moves` when
    leaders moved while all others were."""

    begin: float
    end: float
    absent: tuple[str, ...] = ()
    moves: tuple[float, ...] = ()

    @property
    def length(self) -> float:
        return self.end - self.begin

    def of(self, frame: pd.DataFrame, time: str) -> pd.DataFrame:
        return frame[(frame[time] >= self.begin) & (frame[time] < self.end)]


def steady(recording: Recording) -> RecordingWindow:
    """From when the last client has begun until the first one leaves; no leader moves meanwhile."""
    columns = ["client", "tried", "answered"]
    requests = pd.concat([recording.fetches[columns], recording.produces[columns]])
    spans = requests.groupby("client").agg(first=("tried", "min"), last=("answered", "max"))
    whole = np.ptp(np.array([requests["tried"].min(), requests["answered"].max()]))
    present = spans[(spans["last"] - spans["first"]) >= PRESENT * whole]
    if present.empty:
        raise UserError("no client was there for most of the recording: there is no steady stretch to fit to")
    begin, end = float(present["first"].max()), float(present["last"].min())
    moves = [at for at in _moves(recording.leaders) if begin < at < end]
    # Of the stretches between leaders' moves, the longest.
    settled = [(since + SETTLING_MS, until) for since, until in pairwise([begin, *moves, end])]
    begin, end = max(settled, key=lambda stretch: stretch[1] - stretch[0])
    window = RecordingWindow(begin, end, tuple(sorted(set(spans.index) - set(present.index))), tuple(moves))
    if window.length < LEAST_MS:
        still = ", and no leader moved," if moves else ""
        raise UserError(
            f"the clients were all there together{still} for {max(0, window.length) / 1000:.1f} s only: "
            f"a scenario needs {LEAST_MS / 1000:.0f} s at least"
        )
    return window


def _moves(leaders: Iterable[Led]) -> list[float]:
    """When a partition got another leader than the one before."""
    leader: dict[int, int] = {}
    moments = set()
    for lead in sorted(leaders, key=lambda led: led.at):
        if leader.setdefault(lead.key, lead.leader) != lead.leader:
            moments.add(lead.at)
            leader[lead.key] = lead.leader
    return sorted(moments)
