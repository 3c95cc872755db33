"""Compiles the engine and the scanner of request logs ahead of use: `python -m purgatory_udf.rules.warm_up`.

Does nothing if the code of this version is cached already (`code_cache`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.calls_from_events import explode
from purgatory_udf.rules.engine.jit import code_cache, line_scanner, ordered_maps
from purgatory_udf.rules.engine.jit.line_layout import LineLayout, Lines
from purgatory_udf.rules.engine.loop.codes import FOREVER, Code
from purgatory_udf.rules.engine.loop.engine_call import Call
from purgatory_udf.rules.engine.loop.engine_state import State, step
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.groups import compiled_coordinator
from purgatory_udf.rules.groups.group_gauges import CoordinatorPurgatory

_RULES = "rules"


def main() -> None:
    """Compile every entry point by replaying two small batches as workers do, with serialized states."""
    engine = Engine(Config(), serialize=True)
    with _rules_in_parallel():
        explode(event_table(_events(0)), Config(), threads=2)
        CoordinatorPurgatory(Code.HEARTBEAT, 1000, 0, 0).advance(None, FOREVER)
        compiled_coordinator.decide_groups(compiled_coordinator.make_arena({}), FOREVER)
    decided = [call for number in range(2) for call in engine.feed(event_table(_events(number)))]
    Tables.of([*decided, *engine.drain()])
    line_scanner.scan(Lines.of([b"-"]), LineLayout("-", {}, ()), 1)
    no_changes = ordered_maps.MapChanges(*[np.zeros(1, np.int64)] * len(ordered_maps.MapChanges._fields))
    ordered_maps.apply(no_changes, 1, is_compiled=True)
    code_cache.mark_complete()


def load() -> None:
    """Load the compiled code if all of it is cached. Otherwise do nothing, because compilation may take a minute."""
    if code_cache.is_complete():
        main()


def compile_rules() -> None:
    """Compile the event loop and the functions that it calls, which takes three quarters of the time."""
    step(State(), Call(), 0, Engine(Config()).settings)


@contextmanager
def _rules_in_parallel() -> Iterator[None]:
    """Compile the event loop in another process while the caller compiles the rest.

    Each entry point is cached in its own files. If the other process fails, this one compiles the missing functions
    when it calls them.
    """
    if not code_cache.needs_warm_up():
        yield
        return
    null = subprocess.DEVNULL
    command = [sys.executable, "-m", "purgatory_udf.rules.warm_up", _RULES]
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null) as other:
        try:
            yield
        except BaseException:
            other.kill()
            raise


def _events(number: int) -> list[dict[str, Any]]:
    """Return the events of a batch: an append, its high watermark, and a fetch that waits for the next append.

    An append to another partition is first, so that two threads number the keys differently.
    """
    common = {"time_us": 1_000_000 * (number + 1), "broker": 1}
    change = common | {"type": "partition", "topic": "t", "partition": 0, "offset": number + 1}
    part = {"topic": "t", "partition": 0, "fetch_offset": number + 1, "max_bytes": 1000}
    fetch = {"request_id": str(number), "replica_id": -1, "max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1000}
    events = (
        change | {"partition": 1, "change": "log_end", "bytes": 100},
        change | {"change": "log_end", "bytes": 100},
        change | {"change": "high_watermark"},
        common | {"type": "fetch", **fetch, "isolation": "read_uncommitted", "partitions": [part]},
    )
    return [event | {"seq": len(events) * number + place} for place, event in enumerate(events)]


if __name__ == "__main__":
    compile_rules() if sys.argv[1:] == [_RULES] else main()
