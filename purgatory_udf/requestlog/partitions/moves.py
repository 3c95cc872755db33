"""Groups move with their partition of `__consumer_offsets`: who begins to lead it loads them, who leads it no more
unloads them. Where a broker's process ends, what it had parked for them is gone, of those that it gave away before as
well: a broker that is told to stop hands over first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from purgatory_udf.requestlog.cluster.context import Context
from purgatory_udf.requestlog.cluster.coordinators import DEFAULT_PARTITIONS, OFFSETS_TOPIC, partition_for
from purgatory_udf.requestlog.partitions.returning import LeadershipState
from purgatory_udf.requestlog.partitions.stopping import STOPPED
from purgatory_udf.requestlog.partitions.stretch import Stretch
from purgatory_udf.requestlog.partitions.sweep import STATE, Timed
from purgatory_udf.requestlog.requests.facts import PartitionFacts


def moves(
    facts: PartitionFacts, context: Context, leadership: Sequence[LeadershipState], stretch: Stretch
) -> Iterator[Timed]:
    """Of groups that are known by what was stored of them; who led from the beginning has nothing to load."""
    if facts.topic != OFFSETS_TOPIC or not context.groups.stored:
        return
    count = context.partition_counts.get(OFFSETS_TOPIC, DEFAULT_PARTITIONS[OFFSETS_TOPIC])
    groups = sorted(group for group in context.groups.stored if partition_for(group, count) == facts.partition)
    leads = has_led = False
    for state in leadership:
        change = state.fields["change"]
        begins, ends = change == "leader" and not leads, change in ("not_leader", "deleted") and leads
        stops = change == STOPPED and has_led
        leads = (leads or begins) and not (ends or stops)
        has_led |= leads
        if not (begins or ends or stops) or not stretch.from_us <= state.at_us < stretch.until_us:
            continue
        for group in groups:
            if stops:
                event = {"time_us": state.at_us, "broker": facts.broker, "group": group, "type": "group_stopped"}
                yield Timed(state.at_us, STATE, event)
            else:
                yield from _move(facts.broker, group, state.at_us, context, loads=begins)


def _move(broker: int, group: str, at_us: int, context: Context, *, loads: bool) -> Iterator[Timed]:
    stored = context.groups.at(group, at_us)
    if stored is None:
        return
    event: dict[str, Any] = {"time_us": at_us, "broker": broker, "group": group}
    if not loads:
        yield Timed(at_us, STATE, {**event, "type": "group_unloaded"})
        return
    event |= {"type": "group_loaded", "generation": stored.generation}
    if not stored.members:
        nobody = {"member_id": "", "session_timeout_ms": 0, "rebalance_timeout_ms": 0, "protocols": []}
        yield Timed(at_us, STATE, {**event, **nobody})
    for member in stored.members:
        yield Timed(at_us, STATE, {**event, "leader_member_id": stored.leader, **member})
