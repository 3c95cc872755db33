"""Compile the loop, if this version of it has not been compiled here: `python -m purgatory_udf.rules.warm_up`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.columns.explode import explode
from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.rules.engine.loop.codes import FOREVER, Code
from purgatory_udf.rules.engine.loop.engine_call import Call
from purgatory_udf.rules.engine.loop.engine_state import State, step
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.groups.group_gauges import CoordinatorPurgatory

_RULES = "rules"


def main() -> None:
    """By using all of it, in the way in which workers do: with what was packed, and from batch to batch."""
    engine = Engine(Config(), serialize=True)
    with _rules_meanwhile():
        explode(event_table(_events(0)), Config(), threads=2)
        CoordinatorPurgatory(Code.HEARTBEAT, 1000, 0).tell(None, FOREVER)
    decided = [call for number in range(2) for call in engine.feed(event_table(_events(number)))]
    Tables.of([*decided, *engine.drain()])
    code_cache.mark_complete()


def load() -> None:
    """What has been compiled, if all of it has: to compile it may take longer than what it is wanted for."""
    if code_cache.is_complete():
        main()


def rules() -> None:
    """The rules, and what stands around them: three quarters of the work."""
    step(State(), Call(), 0, Engine(Config()).settings)


@contextmanager
def _rules_meanwhile() -> Iterator[None]:
    """By another process, on another core: each entry is kept in files of its own. If that fails, they are compiled
    here when they are used."""
    if not code_cache.needs_warm_up():
        yield
        return
    quiet = subprocess.DEVNULL
    command = [sys.executable, "-m", "purgatory_udf.rules.warm_up", _RULES]
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as other:
        try:
            yield
        except BaseException:
            other.kill()
            raise


def _events(number: int) -> list[dict[str, Any]]:
    """A batch at the log's end, its high watermark, and a fetch that waits for the next one."""
    common = {"time_us": 1_000_000 * (number + 1), "broker": 1}
    change = common | {"type": "partition", "topic": "t", "partition": 0, "offset": number + 1}
    part = {"topic": "t", "partition": 0, "fetch_offset": number + 1, "max_bytes": 1000}
    fetch = {"request_id": str(number), "replica_id": -1, "max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1000}
    events = (
        change | {"change": "log_end", "bytes": 100},
        change | {"change": "high_watermark"},
        common | {"type": "fetch", **fetch, "isolation": "read_uncommitted", "partitions": [part]},
    )
    return [event | {"seq": len(events) * number + place} for place, event in enumerate(events)]


if __name__ == "__main__":
    rules() if sys.argv[1:] == [_RULES] else main()
