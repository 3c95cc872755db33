"""One member of a group: its timeouts and protocols, and which of its requests waits for an answer."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.coordinator.request import JoinGroup, SyncGroup


@dataclass(slots=True)
class Member:
    """`member_id` changes when a static member restarts; its `instance_id` stays.

    `sign_of_life` is what the member's session waits for: the api of the request that proved it alive, or why it is
    gone. It is None from the moment a session is armed.
    """

    member_id: str
    instance_id: str | None
    client_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[str, ...]
    awaiting_join: JoinGroup | None = None
    awaiting_sync: SyncGroup | None = None
    is_new: bool = True
    sign_of_life: str | None = None

    @classmethod
    def joining(cls, request: JoinGroup, member_id: str) -> Member:
        member = cls(member_id, request.instance_id, request.client_id, 0, 0, ())
        member.update(request)
        return member

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def update(self, request: JoinGroup) -> None:
        """Take over what a join says, and let it wait. A join that waits already is given up: it is never answered."""
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols
        self.awaiting_join = request

    def alive_by(self) -> str | None:
        """Why no heartbeat is owed right now, or None if one is.

        A member that waits for an answer owes none: its client cannot know whether it is to go on. The exception is a
        new member's first join, which has five minutes: its client may be gone, and nobody would notice.
        """
        if self.sign_of_life is not None or self.is_new:
            return self.sign_of_life
        if self.awaiting_join is not None:
            return "awaiting_join"
        if self.awaiting_sync is not None:
            return "awaiting_sync"
        return None
