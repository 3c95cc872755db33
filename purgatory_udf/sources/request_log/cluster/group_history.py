"""What coordinators have stored of their groups, so that a broker which takes one over knows it: generations, members.

A group is written to the coordinators' log when the leader's assignment has come, and when its last member has gone
(Kafka: `GroupMetadataManager.storeGroup`); whoever leads that partition next loads what was written last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from purgatory_udf.sources.request_log.lines.logged_request import Request

# Requests that change what is stored.
GROUP_STORE_APIS = frozenset({"JOIN_GROUP", "SYNC_GROUP", "LEAVE_GROUP"})
# How many stored states of a group are remembered: an old coordinator may go on for a while.
MAX_RECORDS = 8


@dataclass(slots=True)
class GroupRecord:
    """One record of a group: members as `group_loaded` has them; none of an empty group."""

    at_us: int
    generation: int
    leader: str | None
    members: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class GroupHistory:
    """Feed it requests of `STORING` in the order of time. `joined`: who was let into a group's newest generation."""

    stored: dict[str, list[GroupRecord]] = field(default_factory=dict)
    joined: dict[str, tuple[int, dict[str, dict[str, Any]]]] = field(default_factory=dict)

    def read(self, request: Request) -> None:
        answer, group = request.answer or {}, str(request.body["groupId"])
        if answer.get("errorCode"):
            return
        if request.api == "JOIN_GROUP":
            self._joined(group, request, answer)
        elif request.api == "SYNC_GROUP" and request.body.get("assignments"):
            self._assigned(group, request)
        elif request.api == "LEAVE_GROUP":
            for member_id in _leaving_members(request.body, answer):
                self._gone(group, member_id, request.start_us)

    def at(self, group: str, at_us: int) -> GroupRecord | None:
        """What was stored last by then."""
        return next((record for record in reversed(self.stored.get(group, ())) if record.at_us <= at_us), None)

    def _joined(self, group: str, request: Request, answer: Mapping[str, Any]) -> None:
        generation, body = int(answer.get("generationId", -1)), request.body
        known = self.joined.get(group)
        if known is None or known[0] < generation:
            known = self.joined[group] = (generation, {})
        if known[0] == generation:
            session = int(body["sessionTimeoutMs"])
            known[1][str(answer["memberId"])] = {
                "client_id": request.client_id,
                "member_id": str(answer["memberId"]),
                **({"group_instance_id": str(body["groupInstanceId"])} if body.get("groupInstanceId") else {}),
                "session_timeout_ms": session,
                "rebalance_timeout_ms": int(body.get("rebalanceTimeoutMs", session)),
                "protocols": [str(protocol["name"]) for protocol in body.get("protocols") or []],
            }

    def _assigned(self, group: str, request: Request) -> None:
        generation, members = self.joined.get(group, (-1, {}))
        if generation == int(request.body["generationId"]):
            leader = str(request.body.get("memberId") or "")
            self._store(group, GroupRecord(request.answered_us, generation, leader, list(members.values())))

    def _gone(self, group: str, member_id: str, at_us: int) -> None:
        generation, members = self.joined.get(group, (-1, {}))
        members.pop(member_id, None)
        if generation >= 0 and not members:
            self._store(group, GroupRecord(at_us, generation + 1, None))

    def _store(self, group: str, stored: GroupRecord) -> None:
        self.stored[group] = [*self.stored.get(group, ()), stored][-MAX_RECORDS:]

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {
            "stored": {group: [asdict(record) for record in stored] for group, stored in self.stored.items()},
            "joined": {group: list(joined) for group, joined in self.joined.items()},
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> GroupHistory:
        """From a `snapshot`."""
        return cls(
            {group: [GroupRecord(**record) for record in stored] for group, stored in state["stored"].items()},
            {group: (generation, members) for group, (generation, members) in state["joined"].items()},
        )


def _leaving_members(body: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[str]:
    if body.get("members") is None:
        yield str(body.get("memberId") or "")
        return
    for member in answer.get("members") or body["members"]:
        if not member.get("errorCode"):
            yield str(member.get("memberId") or "")
