"""A group's life as a test writes it down: requests at milliseconds in, one line per thing that happened out.

    group = GroupTimeline()
    group.join(1000, "a")
    group.until(4000)
    assert group.log() == [
        "1000 Empty → PreparingRebalance 0 [a]: member a joined",
        "4000 PreparingRebalance → CompletingRebalance 1 [a]: initial delay over",
        "4000 join_group a: NONE, generation 1 led by a",
    ]

Requests are named after who sends them. Unless told otherwise a member joins without an id and is given its name,
sessions last 10 s, rounds at most 5 s, and the initial delay is 3 s.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, Removal, StateChange
from purgatory_udf.rules.reference.reference_replay import Replay, replay

Event = dict[str, Any]

# Before version 4 a member without an id is let in at once, which keeps a timeline short.
BEFORE_MEMBER_ID_REQUIRED = 3
WITH_MEMBER_ID_REQUIRED = 5
WITH_SKIP_ASSIGNMENT = 9


class GroupTimeline:
    """One group at one broker. `settings` are those of the configuration's section `group`."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[Event] = []
        self._settings = {"min_session_timeout_ms": 0} | settings

    def join(self, ms: float, member: str, *, rejoin: bool = False, **fields: Any) -> None:
        """The first join of a member, which the broker will call `member`; or, as `rejoin`, one with that id."""
        identity = {"member_id": member} if rejoin else {"member_id": "", "assigned_member_id": member}
        timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5000}
        self._add(
            ms,
            "join_group",
            member,
            {"api_version": BEFORE_MEMBER_ID_REQUIRED, "protocols": ["range"]} | identity | timeouts | fields,
        )

    def rejoin(self, ms: float, member: str, **fields: Any) -> None:
        self.join(ms, member, rejoin=True, **fields)

    def sync(self, ms: float, member: str, generation: int = 1, **fields: Any) -> None:
        self._add(ms, "sync_group", member, {"member_id": member, "generation": generation} | fields)

    def heartbeat(self, ms: float, member: str, generation: int = 1, **fields: Any) -> None:
        self._add(ms, "heartbeat", member, {"member_id": member, "generation": generation} | fields)

    def commit(self, ms: float, member: str, generation: int = 1, **fields: Any) -> None:
        self._add(ms, "offset_commit", member, {"member_id": member, "generation": generation} | fields)

    def leave(self, ms: float, member: str, **fields: Any) -> None:
        self._add(ms, "leave_group", member, {"member_id": member} | fields)

    def unloaded(self, ms: float) -> None:
        """Another broker coordinates the group from now on."""
        self._happen(ms, "group_unloaded")

    def stopped(self, ms: float) -> None:
        """The coordinator's process ends."""
        self._happen(ms, "group_stopped")

    def loaded(self, ms: float, *members: str, generation: int = 1) -> None:
        """The group is read from the log, with these members, the first its leader."""
        for member in members or ("",):
            timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5000, "protocols": ["range"]}
            who = {"member_id": member, "leader_member_id": members[0], **timeouts} if member else {}
            self._happen(ms, "group_loaded", generation=generation, **who)

    def _happen(self, ms: float, kind: str, **fields: Any) -> None:
        common = {"type": kind, "time_us": round(ms * 1000), "seq": len(self.events) + 1, "group": "g"}
        self.events.append(common | fields)

    def until(self, ms: float) -> None:
        """Time passes, and nothing else."""
        self.events.append({"type": "clock", "time_us": round(ms * 1000), "seq": len(self.events) + 1})

    def replay(self, *, drain: bool = False) -> Replay:
        return replay(self.events, Config.model_validate({"group": self._settings, "drain": drain}))

    def log(self, since: int = 0) -> list[str]:
        """What happened from that millisecond on, up to the last request's."""
        return [_line(entry) for entry in self.replay().groups.entries if entry_ms(entry) >= since]

    def operations(self, *, drain: bool = False) -> list[str]:
        """The operations that have ended, in the order in which they began."""
        return [operation_line(outcome) for outcome in self.replay(drain=drain).outcomes]

    def _add(self, ms: float, api: str, member: str, fields: dict[str, Any]) -> None:
        common = {"type": api, "time_us": round(ms * 1000), "seq": len(self.events) + 1, "group": "g"}
        self.events.append(common | {"request_id": member, "client_id": f"client-{member}"} | fields)


def entry_ms(entry: Answer | Removal | StateChange) -> int:
    return (entry.transition.at_us if isinstance(entry, StateChange) else entry.at_us) // 1000


def operation_line(outcome: Outcome) -> str:
    times = f"{outcome.started_us / 1000:g} to {outcome.ended_us / 1000:g} of {outcome.deadline_us // 1000}"
    how = "expired" if outcome.expired else f"completed by {outcome.completed_by}"
    if outcome.cancelled:
        how = f"cancelled by {outcome.completed_by}"
    return f"{outcome.kind} {outcome.key}: {times}, {how}{'' if outcome.watched else ' on arrival'}"


def _line(entry: Answer | Removal | StateChange) -> str:
    ms = entry_ms(entry)
    match entry:
        case Answer():
            granted = f", generation {entry.generation} led by {entry.leader}" if entry.leader is not None else ""
            given = f", id {entry.member_id}" if entry.error == "MEMBER_ID_REQUIRED" else ""
            return f"{ms} {entry.api} {entry.request_id}: {entry.error}{granted}{given}"
        case Removal():
            return f"{ms} {entry.member_id} out: {entry.reason}"
        case StateChange():
            change = entry.transition
            states = f"{change.from_state} → {change.to_state}"
            return f"{ms} {states} {change.generation} [{' '.join(change.members)}]: {change.reason}"


def stable_pair(**settings: object) -> GroupTimeline:
    """a leads, b follows; generation 1 since 4000, Stable since 4100. Rounds last 5 s at most."""
    group = GroupTimeline(**settings)
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000)
    group.sync(4100, "a")
    group.sync(4100, "b")
    return group
