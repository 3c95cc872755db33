"""Memory that a call lets go stays with the process, for the next call asks for as much again.

A call's tables are large, so the C library fetches each from the system and gives it back at once: every page of it is
cleared anew, and on a virtual machine found anew by the host. That cost a call up to a third of its time.
"""

from __future__ import annotations

import ctypes
from functools import cache

# Names of glibc's settings, as its `malloc.h` numbers them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
# So much that nobody uses stays, and is asked for beyond what is needed.
_KEPT, _AHEAD = 1 << 29, 1 << 26


@cache
def keep_freed() -> None:
    """For a process that does little else. Other C libraries do as they like."""
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _AHEAD)):
            setting(name, value)
