"""A timeline of one group for tests: requests at milliseconds in, one line per answer, removal or transition out.

    group = GroupTimeline()
    group.join(1000, "a")
    group.until(4000)
    assert group.log() == [
        "1000 Empty → PreparingRebalance 0 [a]: member a joined",
        "4000 PreparingRebalance → CompletingRebalance 1 [a]: initial delay over",
        "4000 join_group a: NONE, generation 1 led by a",
    ]

Requests are named after their senders. By default a member joins without an id and is assigned its name, sessions last
10 s, rebalances at most 5 s, and the initial delay is 3 s.
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.coordinator.coordinator_journal import Answer, Entry, Removal, StateChange
from purgatory_udf.rules.reference.reference_replay import Replay, replay

Event = dict[str, Any]

# Versions of JoinGroup. Before version 4 a member without an id is added at once, which keeps a timeline short.
BEFORE_MEMBER_ID_REQUIRED = 3
WITH_MEMBER_ID_REQUIRED = 5
WITH_SKIP_ASSIGNMENT = 9


class GroupTimeline:
    """One group at one broker. `settings` belong to the section `group` of the configuration."""

    def __init__(self, **settings: Any) -> None:
        self.events: list[Event] = []
        self._settings = {"min_session_timeout_ms": 0} | settings

    def join(self, ms: float, member: str, *, rejoin: bool = False, **fields: Any) -> None:
        """Join without an id, and be assigned the id `member`; or, with `rejoin`, join with that id."""
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

    def pause(self, ms: float, resumed_ms: float) -> None:
        """Let the group's broker stand still for some time."""
        for kind, at_ms in (("paused", ms), ("resumed", resumed_ms)):
            self.events.append({"type": kind, "time_us": round(at_ms * 1000), "seq": -len(self.events) - 1})

    def consumer_heartbeat(self, ms: float, member: str, epoch: int, **fields: Any) -> None:
        self._add(ms, "consumer_group_heartbeat", member, {"member_id": member, "member_epoch": epoch} | fields)

    def commit(self, ms: float, member: str, generation: int = 1, **fields: Any) -> None:
        self._add(ms, "offset_commit", member, {"member_id": member, "generation": generation} | fields)

    def leave(self, ms: float, member: str, **fields: Any) -> None:
        self._add(ms, "leave_group", member, {"member_id": member} | fields)

    def unloaded(self, ms: float) -> None:
        """Another broker coordinates the group from now on."""
        self._add_event(ms, "group_unloaded")

    def stopped(self, ms: float) -> None:
        """The coordinator's process ends."""
        self._add_event(ms, "group_stopped")

    def loaded(self, ms: float, *members: str, generation: int = 1, **fields: Any) -> None:
        """The coordinator loads the group with these members, the first of which is the leader."""
        for member in members or ("",):
            timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 5000, "protocols": ["range"]}
            identity = {"member_id": member, "leader_member_id": members[0], **timeouts, **fields} if member else {}
            self._add_event(ms, "group_loaded", generation=generation, **identity)

    def _add_event(self, ms: float, kind: str, **fields: Any) -> None:
        common = {"type": kind, "time_us": round(ms * 1000), "seq": len(self.events) + 1, "group": "g"}
        self.events.append(common | fields)

    def until(self, ms: float) -> None:
        """Advance the time to `ms`."""
        self.events.append({"type": "clock", "time_us": round(ms * 1000), "seq": len(self.events) + 1})

    def replay(self, *, drain: bool = False) -> Replay:
        return replay(self.events, Config.model_validate({"group": self._settings, "drain": drain}))

    def log(self, since: int = 0) -> list[str]:
        """Return the journal from `since` up to the last event, as text lines."""
        return [_line(entry) for entry in self.replay().groups.entries if entry_ms(entry) >= since]

    def operations(self, *, drain: bool = False) -> list[str]:
        """Return the completed, expired and cancelled operations as text lines, in order of start."""
        return [operation_line(outcome) for outcome in self.replay(drain=drain).outcomes]

    def _add(self, ms: float, api: str, member: str, fields: dict[str, Any]) -> None:
        common = {"type": api, "time_us": round(ms * 1000), "seq": len(self.events) + 1, "group": "g"}
        self.events.append(common | {"request_id": member, "client_id": f"client-{member}"} | fields)


def entry_ms(entry: Entry) -> int:
    return (entry.transition.at_us if isinstance(entry, StateChange) else entry.at_us) // 1000


def operation_line(outcome: Outcome) -> str:
    times = f"{outcome.started_us / 1000:g} to {outcome.ended_us / 1000:g} of {outcome.deadline_us // 1000}"
    how = "expired" if outcome.expired else f"completed by {outcome.completed_by}"
    if outcome.cancelled:
        how = f"cancelled by {outcome.completed_by}"
    return f"{outcome.kind} {outcome.key}: {times}, {how}{'' if outcome.watched else ' on arrival'}"


def _line(entry: Entry) -> str:
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
        case _:
            return f"{ms} {entry}"


def stable_pair(**settings: object) -> GroupTimeline:
    """Return a group of leader a and follower b, with generation 1 since 4000 and Stable since 4100."""
    group = GroupTimeline(**settings)
    group.join(1000, "a", rebalance_timeout_ms=3000)
    group.join(1000, "b", rebalance_timeout_ms=3000)
    group.sync(4100, "a")
    group.sync(4100, "b")
    return group
