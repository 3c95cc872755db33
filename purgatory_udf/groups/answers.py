"""Answers in columns, beside what the trace says of the recorded ones. What goes without saying is left out: that a
heartbeat or a commit is well."""

from __future__ import annotations

from collections.abc import Iterable

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.journal import Answer, GroupJournal
from purgatory_udf.coordinator.request import GroupRequest, JoinGroup
from purgatory_udf.frames.frame import Frame, FrameLayout
from purgatory_udf.groups.words import API_OF, ERROR_OF, LAST_SIGN, NONE

# Asked at `t`, answered at `at`. `asked` is the generation that the request names, `generation` the one that a join is
# granted (-1: none). `given` is the member id in the answer, `leader` the leader; `assigned` and `named_leader` are
# what the recorded answer had there ("": not recorded).
ANSWERS = FrameLayout(
    numbers=("seq", "t", "at", "api", "error", "asked", "generation"),
    texts=("request_id", "member_id", "given", "leader", "assigned", "named_leader"),
)


class AnswerJournal(GroupJournal):
    """A journal that keeps, of each answer that is not left out, the request it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[GroupRequest, Answer]] = []

    def answered(self, request: GroupRequest, error: str, now_us: int, member_id: str | None = None) -> None:
        super().answered(request, error, now_us, member_id)
        if error != NONE or API_OF[request.api] > LAST_SIGN:
            self._keep(request)

    def joined(self, request: JoinGroup, group: Group, member_id: str, leader: str | None, now_us: int) -> None:
        super().joined(request, group, member_id, leader, now_us)
        self._keep(request)

    def _keep(self, request: GroupRequest) -> None:
        answer = self.entries[-1]
        assert isinstance(answer, Answer)
        self.kept.append((request, answer))


def answer_frame(answered: Iterable[tuple[GroupRequest, Answer]]) -> Frame:
    return ANSWERS.of([_row(request, answer) for request, answer in answered])


def _row(request: GroupRequest, answer: Answer) -> tuple[int | str, ...]:
    join = request if isinstance(request, JoinGroup) else None
    return (
        request.seq,
        request.time_us,
        answer.at_us,
        API_OF[request.api],
        ERROR_OF[answer.error],
        request.generation,
        -1 if answer.generation is None else answer.generation,
        request.request_id or "",
        request.member_id,
        answer.member_id,
        answer.leader or "",
        (join.assigned_member_id or "") if join else "",
        (join.leader_member_id or "") if join else "",
    )
