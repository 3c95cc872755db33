"""Following a log without Spark: the tasks of each step in a row, with lists for what Spark shuffles and keeps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from purgatory_udf.requestlog.cluster.context import TELLING, Given
from purgatory_udf.requestlog.following.carried import Carried
from purgatory_udf.requestlog.following.rows import SESSION, SWEEP
from purgatory_udf.requestlog.following.tasks import partition_of, requests_apart, sessions_apart, timelines
from purgatory_udf.requestlog.importing import rows as kinds
from purgatory_udf.requestlog.importing.reading import Tally, matters
from purgatory_udf.requestlog.importing.rows import Facts, request_row
from purgatory_udf.requestlog.lines.bodies import fetch_answer_of, fetch_of
from purgatory_udf.requestlog.lines.request import Request
from purgatory_udf.requestlog.requests.sessions import session_key

Row = dict[str, Any]


@dataclass
class Stepwise:
    """Feed it requests as they are logged; it returns each step's events, in their order."""

    hold_us: int
    given: Given = field(default_factory=Given)
    carried: Carried = field(default_factory=Carried)
    held: list[Request] = field(default_factory=list)
    kept: list[Row] = field(default_factory=list)
    known: list[Facts] = field(default_factory=list)
    late: int = 0
    _racked: bool = False

    def step(self, requests: Sequence[Request]) -> list[Row]:
        known = [one for one in requests if matters(one)]
        fresh = [one for one in known if one.start_us >= self.carried.until_us]
        self.late += len(known) - len(fresh)
        self.held += fresh
        newest = max((one.answered_us for one in self.held), default=self.carried.until_us)
        stretch = self.carried.stretch(newest, self.hold_us)
        telling = [one for one in sorted(self.held, key=_order) if one.api in TELLING]
        tally = Tally(partitions=self.carried.asked)
        for one in fresh:
            if one.api == "FETCH":
                tally.asked(fetch_of(one.body))
        self._racked |= bool(tally.counts["racked"])
        context = self.carried.context(telling, self.given, _votes(self.held), self._racked)
        parts = list(requests_apart(self._others(), context, stretch.until_us))
        parts += sessions_apart(self._fetches(), context, stretch.until_us)
        facts: list[Facts | Row] = [known._replace(settled=True) for known in self.known]
        facts += [row for row in parts if isinstance(row, Facts)]
        facts += [row for row in self.kept if row["part"] == SWEEP]
        told = list(timelines(sorted(facts, key=partition_of), context, stretch))
        said = _rows(told)
        operations = [{**row, "settled": True} for row in self.kept if row["part"] == kinds.OPERATION]
        operations += [row for row in _rows(parts) if row["part"] == kinds.OPERATION]
        produced: dict[tuple[int, int], list[Row]] = {}
        for row in said:
            if row["part"] == kinds.PRODUCED:
                produced.setdefault((row["file"], row["line"]), []).append(row)
        events = [(_place(row), json.loads(row["event"])) for row in said if row["part"] == kinds.CHANGE]
        pending = []
        for row in operations:
            offsets = produced.get((row["file"], row["line"]), [])
            at = max([row["time_us"], stretch.from_us, *(one["time_us"] for one in offsets)])
            if at < stretch.until_us:
                event = json.loads(row["event"])
                event["time_us"] = at
                for offset in offsets:
                    event["partitions"][offset["slot"]]["base_offset"] = offset["base"]
                    event["partitions"][offset["slot"]]["last_offset"] = offset["end"] - 1
                event["line"] = row["line"]
                events.append((_place({**row, "time_us": at}), event))
            elif row["settled"]:
                pending.append({name: value for name, value in row.items() if name != "settled"})
        settled = [one for one in self.held if one.start_us < stretch.until_us]
        self.carried.settle(
            stretch.until_us,
            (one for one in telling if one.start_us < stretch.until_us),
            _votes(settled),
            {row["topic"] for row in said if row["part"] == SWEEP},
            context,
        )
        self.carried = Carried.resumed(json.loads(json.dumps(self.carried.snapshot())))
        self.held = [one for one in self.held if one.start_us >= stretch.until_us]
        self.kept = [row for row in _rows(parts) if row["part"] == SESSION]
        self.kept += [row for row in said if row["part"] == SWEEP]
        self.known = [row for row in told if isinstance(row, Facts)]
        self.kept += pending
        return [event for _, event in sorted(events, key=lambda one: one[0])]

    def _others(self) -> Iterator[Row]:
        return (request_row(one, None) for one in self.held if one.api != "FETCH")

    def _fetches(self) -> list[Row]:
        fetches = [request_row(one, _session(one)) for one in sorted(self.held, key=_order) if one.api == "FETCH"]
        states = [
            {"broker": row["broker"], "session": row["kind"], "api": SESSION, "body": row["event"]}
            for row in self.kept
            if row["part"] == SESSION
        ]
        return sorted([*states, *fetches], key=lambda row: (row["broker"], row["session"]))


def _session(fetch: Request) -> str:
    return session_key(fetch_of(fetch.body), fetch_answer_of(fetch.answer), fetch.connection)


def _order(request: Request) -> tuple[int, tuple[int, int]]:
    return request.start_us, request.place


def _rows(told: Iterable[Facts | Row]) -> list[Row]:
    return [row for row in told if not isinstance(row, Facts)]


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name, _ in kinds.ORDER)


def _votes(requests: Iterable[Request]) -> dict[int, tuple[int, int]]:
    own, all_ = Counter[int](), Counter[int]()
    for one in requests:
        if one.api == "HEARTBEAT":
            all_[one.broker] += 1
            own[one.broker] += one.remote_us == 0
    return {broker: (own[broker], number) for broker, number in all_.items()}
