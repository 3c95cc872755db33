"""What a step leaves to the next beside its rows: how far all is written, and what was told of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.requestlog.cluster.context import Context, Given, context_from, nameless
from purgatory_udf.requestlog.cluster.telling import Telling
from purgatory_udf.requestlog.following.facts_kept import LOOK_BACK_US
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.partitions.stretch import NEVER, Stretch
from purgatory_udf.requestlog.report import Report

# Of each broker: how many heartbeats it answered in the thread that handled them, and how many in all.
Votes = Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class Carried:
    """All before `until_us` is written, up to the event numbered `seq`.

    `nameless` are topic ids that stand for their topics in what is written, whatever name is told of them later;
    `asked`: how many partitions of a topic followers have asked for. `modern`: groups of newer protocols.
    """

    until_us: int = -NEVER
    seq: int = 0
    first_us: int = NEVER
    last_us: int = -NEVER
    told: dict[str, Any] = field(default_factory=lambda: Telling().snapshot())
    votes: dict[int, tuple[int, int]] = field(default_factory=dict)
    nameless: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    modern: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def stretch(self, newest_us: int, hold_us: int) -> Stretch:
        """What a step settles whose newest line was answered at `newest_us`."""
        return Stretch(self.until_us, max(self.until_us, newest_us - hold_us))

    def context(self, telling: Iterable[Request], given: Given, votes: Votes, racked: bool) -> Context:
        """As far as is known: `telling` and `votes` are of all requests that are not settled yet."""
        telling_so_far = Telling.resumed(self.told)
        for request in telling:
            telling_so_far.read(request)
        own_thread = [broker for broker, (at_once, all_) in self._summed(votes).items() if at_once * 2 > all_]
        return context_from(
            telling_so_far,
            given,
            (self.first_us, self.last_us),
            own_thread,
            self.asked,
            racked,
            self.modern,
            self.nameless,
        )

    def settle(
        self, until_us: int, telling: Iterable[Request], votes: Votes, topics: Iterable[str], context: Context
    ) -> None:
        """Go on to `until_us`: `telling` and `votes` are of the requests that this settles, `topics` are those of which
        something is said by now."""
        telling_so_far = Telling.resumed(self.told)
        for request in telling:
            telling_so_far.read(request)
        telling_so_far.forget(until_us - LOOK_BACK_US, context.name)
        self.told = telling_so_far.snapshot()
        self.votes = self._summed(votes)
        self.nameless = sorted({*self.nameless, *nameless(topics, context)})
        self.until_us = until_us

    def count(self, report: Report) -> None:
        total = Report(self.counts)
        total.add(report)
        self.counts = dict(total.counts)

    def _summed(self, votes: Votes) -> dict[int, tuple[int, int]]:
        summed = dict(self.votes)
        for broker, (at_once, all_) in votes.items():
            before = summed.get(broker, (0, 0))
            summed[broker] = (before[0] + at_once, before[1] + all_)
        return summed

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {
            "until_us": self.until_us,
            "seq": self.seq,
            "first_us": self.first_us,
            "last_us": self.last_us,
            "told": self.told,
            "votes": [[broker, *votes] for broker, votes in self.votes.items()],
            "nameless": self.nameless,
            "asked": self.asked,
            "modern": self.modern,
            "counts": self.counts,
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> Carried:
        """From a `snapshot`."""
        return cls(**{**state, "votes": {broker: (at_once, all_) for broker, at_once, all_ in state["votes"]}})
