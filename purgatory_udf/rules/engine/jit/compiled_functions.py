"""Decorators of compiled functions: entry points, which Python calls, and helpers, which only compiled code calls.

Helpers have their own pipeline (`helper_pipeline`). It relies on internals of numba, which is therefore pinned to one
version. With another version, helpers are compiled as numba does by default (`numba_version`), with the same results.

Helpers get records as pointers, without reference counts, copies or allocations (see `records`). With
`NUMBA_DISABLE_JIT=1` the same functions run uncompiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import types
from numba.extending import models, register_model, typeof_impl

from purgatory_udf.rules.engine.jit import Int64EnumMeta, code_cache
from purgatory_udf.rules.engine.jit.numba_version import HELPER_PIPELINE

Function = TypeVar("Function", bound=Callable[..., Any])

# A constant. numba specializes a helper for each literal Python integer that it is called with; this is not a literal.
int64 = cast("Callable[[int], int]", np.int64)


class _Int64EnumType(types.IntEnumClass):
    """Types members such as `Code.FETCH` as int64.

    By default every enumeration has a separate numba type, for which helpers would be compiled again.
    """

    @property
    def member_type(self) -> Any:
        return self.dtype


register_model(_Int64EnumType)(models.OpaqueModel)


@typeof_impl.register(Int64EnumMeta)
def _typeof_int64_enum(enum: Int64EnumMeta, _context: Any) -> Any:
    return _Int64EnumType(enum, types.int64)


def _helper_options(forceinline: bool) -> dict[str, Any]:
    if HELPER_PIPELINE is None:
        return {"error_model": "numpy"}
    return {
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "pipeline_class": HELPER_PIPELINE,
        "forceinline": forceinline,
    }


def helper(function: Function) -> Function:
    """Compile for compiled callers. Without an explicit `forceinline`, numba takes over that of the first caller."""
    return cast("Function", numba.njit(**_helper_options(forceinline=False))(function))


def inlined(function: Function) -> Function:
    """Compile for compiled callers, and inline at every call.

    For functions that are small or have one caller: a call costs more than most of them do, but inlining everything
    would take minutes to compile.
    """
    return cast("Function", numba.njit(**_helper_options(forceinline=True))(function))


def entry_point(function: Function) -> Function:
    """Compile for Python callers, release the GIL while it runs, and cache the machine code (`code_cache`)."""
    if code_cache.FOLDER is None:
        return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))
    config: Any = numba.config
    default_locators = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = f"{code_cache.__name__}.{code_cache.CacheLocator.__name__}"
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = default_locators
    if not os.access(code_cache.FOLDER, os.W_OK):
        # Read-only cache: load from it, and keep other compiled code in memory.
        cache = getattr(compiled, "_cache", None)
        if cache is not None:
            cache.save_overload = lambda *_: None
    return cast("Function", compiled)
