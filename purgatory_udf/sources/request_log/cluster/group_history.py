"""Group metadata as coordinators stored it over time: generations and members.

A coordinator appends a group to `__consumer_offsets` when the group leader's assignment arrives and when the last
member leaves (Kafka: `GroupMetadataManager.storeGroup`). A broker that becomes the leader of the partition loads the
latest record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from purgatory_udf.sources.request_log.lines.logged_request import Request

# APIs with requests that make a coordinator store a group.
GROUP_STORE_APIS = frozenset({"JOIN_GROUP", "SYNC_GROUP", "LEAVE_GROUP"})
# Number of records kept per group. More than one, because an old coordinator may remain active for a while.
MAX_RECORDS = 8


@dataclass(slots=True)
class GroupRecord:
    """One stored record of a group, with members in the form of the event `group_loaded`."""

    at_us: int
    generation: int
    leader: str | None
    members: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class GroupHistory:
    """Derives stored group records from requests of `GROUP_STORE_APIS`, which must come in time order.

    `stored` has the latest records of each group, oldest first; `joined` the newest generation of each group and its
    members by id.
    """

    stored: dict[str, list[GroupRecord]] = field(default_factory=dict)
    joined: dict[str, tuple[int, dict[str, dict[str, Any]]]] = field(default_factory=dict)

    def read(self, request: Request) -> None:
        """Update the history with one request."""
        answer, group = request.answer or {}, str(request.body["groupId"])
        if answer.get("errorCode"):
            return
        if request.api == "JOIN_GROUP":
            self._add_member(group, request, answer)
        elif request.api == "SYNC_GROUP" and request.body.get("assignments"):
            self._store_assignment(group, request)
        elif request.api == "LEAVE_GROUP":
            for member_id in _leaving_members(request.body, answer):
                self._remove_member(group, member_id, request.start_us)

    def at(self, group: str, at_us: int) -> GroupRecord | None:
        """Return the latest record of the group stored by `at_us`, or None."""
        return next((record for record in reversed(self.stored.get(group, ())) if record.at_us <= at_us), None)

    def _add_member(self, group: str, request: Request, answer: Mapping[str, Any]) -> None:
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

    def _store_assignment(self, group: str, request: Request) -> None:
        generation, members = self.joined.get(group, (-1, {}))
        if generation == int(request.body["generationId"]):
            leader = str(request.body.get("memberId") or "")
            self._store(group, GroupRecord(request.answered_us, generation, leader, list(members.values())))

    def _remove_member(self, group: str, member_id: str, at_us: int) -> None:
        generation, members = self.joined.get(group, (-1, {}))
        members.pop(member_id, None)
        if generation >= 0 and not members:
            self._store(group, GroupRecord(at_us, generation + 1, None))

    def _store(self, group: str, stored: GroupRecord) -> None:
        self.stored[group] = [*self.stored.get(group, ()), stored][-MAX_RECORDS:]

    def snapshot(self) -> dict[str, Any]:
        """Return the history as JSON values."""
        return {
            "stored": {group: [asdict(record) for record in stored] for group, stored in self.stored.items()},
            "joined": {group: list(joined) for group, joined in self.joined.items()},
        }

    @classmethod
    def resumed(cls, state: dict[str, Any]) -> GroupHistory:
        """Restore a history from a `snapshot`."""
        return cls(
            {group: [GroupRecord(**record) for record in stored] for group, stored in state["stored"].items()},
            {group: (generation, members) for group, (generation, members) in state["joined"].items()},
        )


def _leaving_members(body: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of members that a LEAVE_GROUP request removed; from version 3 on it may have several."""
    if body.get("members") is None:
        yield str(body.get("memberId") or "")
        return
    for member in answer.get("members") or body["members"]:
        if not member.get("errorCode"):
            yield str(member.get("memberId") or "")
