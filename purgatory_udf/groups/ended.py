"""Operations that have ended, in columns: what `completions` and `expirations` say of a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from purgatory_udf.columnar.frame import Frame, Layout
from purgatory_udf.groups.words import KIND_OF, KINDS, RULE_OF, RULES
from purgatory_udf.outcomes import Outcome

# `t` and `end_t` are microseconds, `deadline` is milliseconds. `triggered`: a check of its own key completed it.
# `member_id` is a session's; a round's key is the group alone.
ENDED = Layout(
    numbers=("op", "kind", "t", "end_t", "deadline", "expired", "watched", "rule", "triggered"),
    texts=("member_id", "request_id", "client_id"),
)


def ended_frame(outcomes: Iterable[tuple[Outcome, str]]) -> Frame:
    """Of the state machine's operations; each with the member that it is of, "" for a round or a sync."""
    rows = [
        (
            one.operation_id,
            KIND_OF[one.kind],
            one.started_us,
            one.ended_us,
            one.deadline_us // 1000,
            one.expired,
            one.watched,
            RULE_OF[one.completed_by],
            one.trigger is not None,
            member_id,
            one.request_id or "",
            one.client_id or "",
        )
        for one, member_id in outcomes
    ]
    if not rows:
        return ENDED.empty()
    columns = dict(zip(ENDED.names, zip(*rows, strict=True), strict=True))
    return Frame(
        {name: np.array(values, dtype=object if name in ENDED.texts else np.int64) for name, values in columns.items()}
    )


def outcomes_of(ended: Frame, broker: int, group: str) -> Iterator[Outcome]:
    """One by one, as the reference has them."""
    rows = zip(*(ended.columns[name].tolist() for name in ENDED.names), strict=True)
    for op, kind, t, end_t, deadline, expired, watched, rule, triggered, member_id, request_id, client_id in rows:
        word = KINDS[kind]
        key = f"{group}-{member_id}" if word == "heartbeat" else group
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
            trigger=key if triggered else None,
            bytes=None,
            partitions=(),
        )
