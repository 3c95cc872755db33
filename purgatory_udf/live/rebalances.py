"""Consumer groups in rebalance, as a call leaves them: whom a round waits for."""

from __future__ import annotations

from collections import Counter
from typing import Any

from purgatory_udf.coordinator.state import GroupState
from purgatory_udf.groups.kept import KeptGroup
from purgatory_udf.groups.rows import parts_of
from purgatory_udf.groups.step import Findings
from purgatory_udf.groups.words import KIND_OF
from purgatory_udf.live.board import SECONDS
from purgatory_udf.loop.words import PURGATORIES, Code

_IN_REBALANCE = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
_NAMED = 5
_HEARTBEAT = KIND_OF["heartbeat"]


class Sayings:
    """Of the groups of one call."""

    def __init__(self) -> None:
        self._rebalances: dict[str, dict[str, Any] | None] = {}
        self._expired: Counter[tuple[int, int, str]] = Counter()

    def note(self, key: str, was: bool, kept: KeptGroup, findings: Findings) -> None:
        """`was`: whether it was in rebalance before the call. Of others nothing is said."""
        now = in_rebalance(kept)
        if now or was or findings.transitions:
            self._rebalances[key] = _rebalance(key, kept) if now else None
        broker = parts_of(key)[0]
        for ended in findings.ended:
            expired = ended.take(ended.expired > 0)
            for deadline, kind in zip(expired.deadline.tolist(), expired.kind.tolist(), strict=True):
                code = Code.HEARTBEAT if kind == _HEARTBEAT else Code.REBALANCE
                self._expired[deadline // 1000, broker, PURGATORIES[code]] += 1

    def said(self) -> dict[str, Any]:
        if not self._rebalances and not self._expired:
            return {}
        recent = max((at for at, *_ in self._expired), default=0) - SECONDS
        expired = [[*mark, count] for mark, count in sorted(self._expired.items()) if mark[0] > recent]
        return {"rebalances": self._rebalances, "expired": expired}


def in_rebalance(kept: KeptGroup) -> bool:
    return kept.group is not None and kept.group.state in _IN_REBALANCE


def _rebalance(key: str, kept: KeptGroup) -> dict[str, Any]:
    broker, name = parts_of(key)
    group = kept.group
    assert group is not None
    joining = group.state is GroupState.PREPARING_REBALANCE
    if joining:
        missing = [member.member_id for member in group.members.values() if member.awaiting_join is None]
        missing += sorted(group.pending_members)
    else:
        missing = [member.member_id for member in group.members.values() if member.awaiting_sync is None]
    round_ = next(iter(kept.rounds), None)
    return {
        "broker": broker,
        "group": name,
        "state": group.state.value,
        "since_us": round_.started_us if round_ is not None else None,
        "deadline_ms": round_.deadline_ms if round_ is not None else None,
        "kind": round_.kind if round_ is not None else None,
        "members": len(group.members),
        "missing": len(missing),
        "named": missing[:_NAMED],
    }
