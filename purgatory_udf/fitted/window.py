"""The stretch of a recording that a scenario is fitted to: everybody is there, and has caught up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.recording import Recording

# A client that was there for less of the recording than this does not count.
PRESENT = 0.6
# What a client needs at its beginning to catch up with what it had missed.
SETTLING_MS = 2000
LEAST_MS = 5000


@dataclass(frozen=True)
class RecordingWindow:
    """Milliseconds of the recording's clock; `absent` are clients that were not there for most of it."""

    begin: float
    end: float
    absent: tuple[str, ...] = ()

    @property
    def length(self) -> float:
        return self.end - self.begin

    def of(self, frame: pd.DataFrame, time: str) -> pd.DataFrame:
        return frame[(frame[time] >= self.begin) & (frame[time] < self.end)]


def steady(recording: Recording) -> RecordingWindow:
    """From when the last client has begun until the first one leaves."""
    columns = ["client", "tried", "answered"]
    requests = pd.concat([recording.fetches[columns], recording.produces[columns]])
    spans = requests.groupby("client").agg(first=("tried", "min"), last=("answered", "max"))
    whole = np.ptp(np.array([requests["tried"].min(), requests["answered"].max()]))
    present = spans[(spans["last"] - spans["first"]) >= PRESENT * whole]
    if present.empty:
        raise UserError("no client was there for most of the recording: there is no steady stretch to fit to")
    window = RecordingWindow(
        float(present["first"].max()) + SETTLING_MS,
        float(present["last"].min()),
        tuple(sorted(set(spans.index) - set(present.index))),
    )
    if window.length < LEAST_MS:
        raise UserError(
            f"the clients were all there together for {max(0, window.length) / 1000:.1f} s only: "
            f"a scenario needs {LEAST_MS / 1000:.0f} s at least"
        )
    return window
