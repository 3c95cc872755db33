"""The share sessions of a broker: their limit, their epochs, and the partitions of each member."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from purgatory_udf.common.configuration import INT32_MAX, ShareSettings
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.reference.delayed_produce import NONE

if TYPE_CHECKING:
    from purgatory_udf.rules.reference.delayed_share_fetch import ShareFetch

SHARE_SESSION_NOT_FOUND = "SHARE_SESSION_NOT_FOUND"
INVALID_SHARE_SESSION_EPOCH = "INVALID_SHARE_SESSION_EPOCH"
SHARE_SESSION_LIMIT_REACHED = "SHARE_SESSION_LIMIT_REACHED"
# Epochs of the requests that start and end a session.
INITIAL_EPOCH, FINAL_EPOCH = 0, -1


@dataclass
class CachedShareSession:
    """The share session of a member at a broker: the partitions it has had, and the epoch of its next request.

    `epoch` is None while the trace does not show it.
    """

    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    epoch: int | None = None


class ShareSessionCache:
    """The share sessions of a broker's members (`ShareSessionCache`)."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._sessions: dict[tuple[str, str], CachedShareSession] = {}
        # Groups and members that have had a session, or have been refused one.
        self._members: set[tuple[str, str]] = set()

    def fetch_error(self, fetch: ShareFetch) -> str:
        """Create, continue or refuse the share session of a fetch (`SharePartitionManager.newContext`).

        Sessions are only checked if the settings limit their number. A session from before the trace may have any
        epoch. Returns the error, or NONE.
        """
        member, limit = (fetch.group, fetch.acquirer.member_id), self._settings.max_sessions
        if limit is not None and fetch.session_epoch == INITIAL_EPOCH:
            self._members.add(member)
            self._sessions.pop(member, None)
            if len(self._sessions) >= limit:
                return SHARE_SESSION_LIMIT_REACHED
            self._sessions[member] = CachedShareSession(epoch=INITIAL_EPOCH)
        elif member not in self._sessions and (limit is None or member not in self._members):
            self._members.add(member)
            self._sessions[member] = CachedShareSession()
        error = self._use(member, fetch.session_epoch)
        if error == NONE:
            self._sessions[member].partitions.update(dict.fromkeys(fetch.partitions))
        return error

    def acknowledge_error(self, group: str, member_id: str, epoch: int | None) -> str:
        """Return the error of the session epoch of a request that acknowledges records, or NONE."""
        member = group, member_id
        if member not in self._sessions and member not in self._members:
            return NONE
        return self._use(member, epoch)

    def _use(self, member: tuple[str, str], epoch: int | None) -> str:
        """Check the epoch of a request, and advance that of the session. An epoch of None matches any session."""
        if self._settings.max_sessions is None:
            return NONE
        session = self._sessions.get(member)
        if session is None:
            return SHARE_SESSION_NOT_FOUND
        if epoch is None:
            session.epoch = None
        elif epoch != FINAL_EPOCH:
            if session.epoch not in (None, epoch):
                return INVALID_SHARE_SESSION_EPOCH
            session.epoch = epoch + 1 if epoch < INT32_MAX else 1
        return NONE

    def close(self, group: str, member_id: str) -> tuple[TopicPartition, ...]:
        """End the session of a member. Return the partitions that it has had."""
        session = self._sessions.pop((group, member_id), None)
        return tuple(session.partitions) if session is not None else ()

    def has_group(self, group: str) -> bool:
        """Return whether a member of the group has a session."""
        return any(of == group for of, _ in self._sessions)

    def forget(self, key: TopicPartition) -> None:
        """Drop the sessions that have had the partition, because the broker stopped."""
        self._sessions = {member: each for member, each in self._sessions.items() if key not in each.partitions}
