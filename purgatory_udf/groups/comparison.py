"""Where a recorded trace and its replay disagree. The replay's state decides; this only counts.

A trace records few of the answers that its coordinator gave: the id given to a join without one, and the leader that a
granted join was told. Beside those, a request may name a member or a generation that the replay does not know: perhaps
the recorded coordinator did not know it either, perhaps it had other timeouts.

| counted as | |
|---|---|
| `leader` | a join was granted, but is told another leader |
| `member_id` | a join is given another id |
| `join_refused` | a join was granted, and gets an error instead |
| `unknown_member`, `fenced_instance`, `illegal_generation` | the replay refuses the request, by that error |
"""

from __future__ import annotations

from collections import Counter

from purgatory_udf.reference.group import Group
from purgatory_udf.reference.group_journal import NONE, GroupJournal
from purgatory_udf.reference.group_request import GroupRequest, JoinGroup

DISAGREEMENTS = ("leader", "member_id", "join_refused", "unknown_member", "fenced_instance", "illegal_generation")

REFUSALS = {
    "UNKNOWN_MEMBER_ID": "unknown_member",
    "FENCED_INSTANCE_ID": "fenced_instance",
    "ILLEGAL_GENERATION": "illegal_generation",
}


class ComparingJournal(GroupJournal):
    """A journal that holds each answer against what the trace says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.disagreements: Counter[str] = Counter()

    def answered(self, request: GroupRequest, error: str, now_us: int, member_id: str | None = None) -> None:
        super().answered(request, error, now_us, member_id)
        if error in REFUSALS:
            self.disagreements[REFUSALS[error]] += 1
        if isinstance(request, JoinGroup) and error != NONE:
            if request.leader_member_id:
                self.disagreements["join_refused"] += 1
            elif error == "MEMBER_ID_REQUIRED":
                self._compare("member_id", request.assigned_member_id, member_id)

    def joined(self, request: JoinGroup, group: Group, member_id: str, leader: str | None, now_us: int) -> None:
        super().joined(request, group, member_id, leader, now_us)
        self._compare("leader", request.leader_member_id, leader)
        self._compare("member_id", request.assigned_member_id, member_id)

    def _compare(self, what: str, recorded: str | None, answered: str | None) -> None:
        """What is not recorded agrees with anything."""
        if recorded and recorded != answered:
            self.disagreements[what] += 1
