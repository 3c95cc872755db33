"""How the loop is compiled: by numba, on first use, kept on disk.

Helpers are handed records, which are pointers: nothing is counted, copied or allocated on the way (see `tables`).
`NUMBA_DISABLE_JIT=1` runs the same code uncompiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

# One machine's compiled loop must run on the others of a cluster.
os.environ.setdefault("NUMBA_CPU_NAME", "generic")

import numba
import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

# A constant of the loop. numba compiles a helper anew for each Python integer that it is called with, and this is none.
number = cast("Callable[[int], int]", np.int64)


def rule(function: Function) -> Function:
    """A helper of the loop."""
    return cast("Function", numba.njit(function))


def entry(function: Function) -> Function:
    """What Python calls."""
    return cast("Function", numba.njit(cache=True, nogil=True)(function))
