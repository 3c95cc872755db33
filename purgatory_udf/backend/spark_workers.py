"""Python workers of Spark: their daemon on one machine, and their memory settings.

Spark starts the daemon with the first task in Python, and the daemon forks one worker for each concurrent task. It
imports the modules of the workers before it forks them. The workers thus share its modules and the engine's compiled
code; loading them would take each worker one to two seconds of CPU time.

The tables of one call are large, so the C library maps memory for each of them and unmaps it at the end. The kernel
then clears every page again and, on a virtual machine, the host allocates it again. That took up to a third of a call's
time (`retain_freed_memory`).

After each task, a worker runs a full garbage collection. Nearly all objects belong to modules that stay loaded; with
the compiled loop this took 0.09 s, more than a small task (`freeze_loaded_objects`).
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import ParamSpec, TypeVar

_MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.state",
    "purgatory_udf.streaming.stateful_adapter",
    "purgatory_udf.streaming.partition_rules",
    "purgatory_udf.streaming.group_rules",
)
_WARM_UP_MODULE = "purgatory_udf.rules.warm_up"
Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")

# Options of glibc's mallopt, numbered as in `malloc.h`.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
# Bytes of free memory to keep, and bytes to request in advance.
_KEPT_BYTES, _EXTRA_BYTES = 1 << 29, 1 << 26


def main() -> None:
    """Load the modules, and run Spark's daemon until Spark closes its stdin."""
    from pyspark import daemon

    # Nothing of this is freed: scanning it takes longer than importing it.
    gc.disable()
    for name in _MODULES:
        import_module(name)
    import_module(_WARM_UP_MODULE).load()
    gc.freeze()
    gc.enable()
    daemon.manager()


@cache
def retain_freed_memory() -> None:
    """Make malloc keep freed memory for the next call. Does nothing if the C library is not glibc."""
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _EXTRA_BYTES)):
            setting(name, value)


class _Loaded:
    """The number of modules that were loaded at the last freeze."""

    modules = 0


def freeze_loaded_objects() -> None:
    """Exclude all existing objects from garbage collection, if modules have been loaded since the last call.

    It is called at the end of a task, when its modules are loaded. Without new modules it does nothing, because it
    would also exclude the task's garbage, which would then never be freed.
    """
    if len(sys.modules) > _Loaded.modules:
        _Loaded.modules = len(sys.modules)
        gc.freeze()


def freeze_in_workers(work: Callable[Arguments, Iterator[Item]]) -> Callable[Arguments, Iterator[Item]]:
    """Wrap the work of a task so that `freeze_loaded_objects` follows it in every process but the caller's.

    The caller's process may run the work, too, but must free all objects when it exits, because libraries warn about
    leftover objects.
    """
    caller = os.getpid()

    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
        yield from work(*args, **kwargs)
        if os.getpid() != caller:
            freeze_loaded_objects()

    return run


if __name__ == "__main__":
    main()
