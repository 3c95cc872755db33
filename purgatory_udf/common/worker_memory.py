"""What stays with a process that is called again and again: memory that a call lets go, and what was loaded for it.

A call's tables are large, so the C library fetches each from the system and gives it back at once: every page of it is
cleared anew, and on a virtual machine found anew by the host. That cost a call up to a third of its time.

After each task a worker of Spark's has Python look through all objects for those that nobody reaches any more. Nearly
all of them belong to modules, which stay; with the loop loaded it took 0.09 s, more than a small task.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Made = TypeVar("Made")

# Names of glibc's settings, as its `malloc.h` numbers them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
# So much that nobody uses stays, and is asked for beyond what is needed.
_KEPT, _AHEAD = 1 << 29, 1 << 26


@cache
def retain_freed_memory() -> None:
    """For a process that does little else. Other C libraries do as they like."""
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _AHEAD)):
            setting(name, value)


class _Loaded:
    """How many modules there were when it was looked last."""

    modules = 0


def freeze_loaded_objects() -> None:
    """At the end of a call, when all is loaded that it needed. Only where there are modules that were not there before:
    what a call leaves that is not reached any more would stay, too."""
    if len(sys.modules) > _Loaded.modules:
        _Loaded.modules = len(sys.modules)
        gc.freeze()


def freeze_in_workers(work: Callable[Given, Iterator[Made]]) -> Callable[Given, Iterator[Made]]:
    """The same, for a worker of Spark's. The process that makes the call may do its work as well, and is to let go of
    everything at its end: libraries tell the terminal of what is still there."""
    maker = os.getpid()

    def run(*given: Given.args, **named: Given.kwargs) -> Iterator[Made]:
        yield from work(*given, **named)
        if os.getpid() != maker:
            freeze_loaded_objects()

    return run
