"""A broker's stop, among the changes of a partition's leadership there.

What was in force when it stopped is in force again when the new process has started, unless something else has been
said by then: nobody else need have led the partition meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from purgatory_udf.requestlog.cluster.lives import NEVER, Stop
from purgatory_udf.requestlog.partitions.returning import LeadershipState
from purgatory_udf.requestlog.supposed import STOPS_WITHIN_US

STOPPED = "stopped"
_SERVES = ("leader", "online")


def with_stops(leadership: Sequence[LeadershipState], stops: Iterable[Stop], broker: int) -> list[LeadershipState]:
    """`leadership` is in time order; what comes before all of it is not known to be of this partition."""
    states = list(leadership)
    for stop in stops:
        at_us = min(stop.at_us + STOPS_WITHIN_US, stop.started_us)
        before = [state for state in leadership if state.at_us < at_us]
        if stop.broker != broker or not before:
            continue
        states.append(LeadershipState(at_us, {"change": STOPPED}))
        meanwhile = any(at_us <= state.at_us <= stop.started_us for state in leadership)
        last = max(place for place, state in enumerate(before) if state.fields["change"] != "isr" or place == 0)
        if stop.started_us < NEVER and not meanwhile and before[last].fields["change"] in _SERVES:
            # With the in-sync set as it was said last.
            again = [before[last], *before[max(last + 1, len(before) - 1) :]]
            states += [LeadershipState(stop.started_us, state.fields) for state in again]
    return sorted(states, key=lambda state: state.at_us)
