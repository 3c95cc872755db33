"""Work that another thread does meanwhile: compiled code and Arrow hold nobody up while they are at it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

Made = TypeVar("Made")

# So many rows are worth a thread; more threads than these wait for memory.
_WORTH_A_THREAD, _THREADS = 1 << 15, 4


def threads_for(rows: int) -> int:
    """At most as many as Arrow would have: what the environment says that a process may. Spark says that to its
    workers, so these have one for each core of a task."""
    return max(1, min(pa.cpu_count(), _THREADS, rows // _WORTH_A_THREAD))


def begun(work: Callable[[], Made]) -> Callable[[], Made]:
    """Waits for what the work makes, or raises what it did."""
    other = ThreadPoolExecutor(1)
    later = other.submit(work)
    other.shutdown(wait=False)
    return later.result
