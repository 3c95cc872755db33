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
    found = list(leadership)
    for stop in stops:
        at_us = min(stop.at_us + STOPS_WITHIN_US, stop.started_us)
        before = [one for one in leadership if one.at_us < at_us]
        if stop.broker != broker or not before:
            continue
        found.append(LeadershipState(at_us, {"change": STOPPED}))
        meanwhile = any(at_us <= one.at_us <= stop.started_us for one in leadership)
        last = max(place for place, one in enumerate(before) if one.fields["change"] != "isr" or place == 0)
        if stop.started_us < NEVER and not meanwhile and before[last].fields["change"] in _SERVES:
            # With the in-sync set as it was said last.
            again = [before[last], *before[max(last + 1, len(before) - 1) :]]
            found += [LeadershipState(stop.started_us, one.fields) for one in again]
    return sorted(found, key=lambda one: one.at_us)
