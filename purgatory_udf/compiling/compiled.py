"""How functions that are compiled are marked: helpers, for compiled code alone, and entries, which Python calls.

Helpers are handed records, which are pointers: nothing is counted, copied or allocated on the way (see `access`).
`NUMBA_DISABLE_JIT=1` runs the same code uncompiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import types
from numba.extending import models, register_model, typeof_impl

from purgatory_udf.compiling import kept
from purgatory_udf.compiling.helper import Helper
from purgatory_udf.compiling.numbers import Numbers

Function = TypeVar("Function", bound=Callable[..., Any])

# A constant of the loop. numba compiles a helper anew for each Python integer that it is called with, and this is none.
number = cast("Callable[[int], int]", np.int64)


class _Words(types.IntEnumClass):
    """`Code.FETCH` is a number like others in compiled code. By itself numba has a kind for each class of words, and
    compiles a helper anew for each kind that it is called with."""

    @property
    def member_type(self) -> Any:
        return self.dtype


register_model(_Words)(models.OpaqueModel)


@typeof_impl.register(Numbers)
def _kind_of_words(words: Numbers, _context: Any) -> Any:
    return _Words(words, types.int64)


_OF_HELPERS: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": Helper,
}


def rule(function: Function) -> Function:
    """A helper of the loop: only compiled code may call it. If nothing is said, numba takes over from whoever calls it
    first that it is put where it is called."""
    return cast("Function", numba.njit(**_OF_HELPERS, forceinline=False)(function))


def inlined(function: Function) -> Function:
    """A helper that is put where it is called: it is small, or called at one place. To call one costs more than most of
    them do; to put everything everywhere takes minutes to compile."""
    return cast("Function", numba.njit(**_OF_HELPERS, forceinline=True)(function))


def entry(function: Function) -> Function:
    """What Python calls."""
    if kept.FOLDER is None:
        return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))
    config: Any = numba.config
    theirs, config.CACHE_LOCATOR_CLASSES = config.CACHE_LOCATOR_CLASSES, f"{kept.__name__}.{kept.Kept.__name__}"
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = theirs
    if not os.access(kept.FOLDER, os.W_OK):
        # What somebody else has compiled is read; what is not among it, this process keeps for itself.
        cache = getattr(compiled, "_cache", None)
        if cache is not None:
            cache.save_overload = lambda *_: None
    return cast("Function", compiled)
