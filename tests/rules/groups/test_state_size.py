"""The state of groups between batches does not grow with time."""

from __future__ import annotations

from benchmarks.groups_trace import groups_trace
from purgatory_udf.common.configuration import Config
from purgatory_udf.streaming.group_rules import GroupRules
from purgatory_udf.streaming.stateful_adapter import Plan, state_function
from tests.rules.groups.test_many_groups import batches
from tests.streaming.stateful_operator import StatefulOperator


def test_state_size_stays_constant() -> None:
    """Within the first minute members join, some crash, and the others rejoin."""
    events = groups_trace(6, seconds=240).events
    rules = GroupRules(Plan("run", False, events["time_us"][-1].as_py()), Config())
    groups = StatefulOperator(state_function(rules), delay_ms=1)
    sizes = []
    *fed, _clock, _end = batches(events, rules, len(events) // 60)
    for rows in fed:
        groups.batch(rows)
        groups.advance()
        states = [value for values in groups.values.values() for value in values if isinstance(value, bytes)]
        sizes.append(sum(map(len, states)))
    second, last = sizes[len(sizes) // 3 : len(sizes) * 2 // 3], sizes[len(sizes) * 2 // 3 :]
    assert min(second) > 1_000
    assert max(last) <= 1.1 * max(second)
