"""Ended operations of groups, converted from columns into outcomes."""

from __future__ import annotations

from collections.abc import Iterator

from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.coordinator.rebalance import CONVERTED
from purgatory_udf.rules.groups.column_frames import Frame
from purgatory_udf.rules.groups.group_rows import KINDS, RULES
from purgatory_udf.rules.groups.operation_timeline import ENDED
from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED

_OUTCOME = tuple(name for name in ENDED.names if name not in ("seq", "sub", "end_seq", "end_sub"))


def outcomes_of(ended: Frame, broker: int, group: str) -> Iterator[Outcome]:
    rows = zip(*(ended.columns[name].tolist() for name in _OUTCOME), strict=True)
    for op, kind, t, end_t, deadline, expired, watched, rule, triggered, member_id, request_id, client_id in rows:
        word = KINDS[kind]
        key = f"{group}-{member_id}" if member_id else group
        yield Outcome(
            operation_id=op,
            kind=word,
            broker=broker,
            request_id=request_id or None,
            client_id=client_id or None,
            key=key,
            started_us=t,
            ended_us=end_t,
            deadline_us=deadline * 1000,
            expired=bool(expired),
            watched=bool(watched),
            completed_by=RULES[rule],
            cancelled=RULES[rule] in (BROKER_STOPPED, CONVERTED),
            trigger=key if triggered else None,
            bytes=None,
            partitions=(),
        )
