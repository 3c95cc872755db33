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
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import AnnotateTypes, NativeLowering
from numba.extending import models, register_model, typeof_impl

from purgatory_udf.rules.engine.jit import Numbers, code_cache

# How a helper is compiled: for those who call it, and not for itself.
#
# By default numba optimizes each helper together with all that it calls, and makes machine code of that, though Python
# calls none: what lies deepest is done a dozen times over. Here a helper's calls are joined to it and no more; the
# rest is done once, in the entry. That takes a third of the time, for code that is as fast.


class Joined(JITCodeLibrary):
    """A helper with all that it calls, without machine code."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        # What is inlined is put where it is called; else nothing.
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Begun(LoweringPass):
    _name = "helper_begun"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        made_by: Any = Joined
        state.library = made_by(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_compile = True
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Known(LoweringPass):
    """What compiled code calls it by. The function is a name only: behind it is nothing that Python could call."""

    _name = "helper_known"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        lowered = state["cr"]
        described = lowered.fndesc
        name = described.qualname.rpartition(".")[2]
        function = _dynfunc.make_function(described.lookup_module(), name, "a helper", 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(function, described, [state.library])
        state["cr"] = lowered._replace(cfunc=function)
        return True


class Helper(CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Begun, AnnotateTypes)
        passes.add_pass_after(_Known, NativeLowering)
        passes.finalize()
        return [passes]


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
    if code_cache.FOLDER is None:
        return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))
    config: Any = numba.config
    theirs, config.CACHE_LOCATOR_CLASSES = (
        config.CACHE_LOCATOR_CLASSES,
        f"{code_cache.__name__}.{code_cache.Kept.__name__}",
    )
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = theirs
    if not os.access(code_cache.FOLDER, os.W_OK):
        # What somebody else has compiled is read; what is not among it, this process keeps for itself.
        cache = getattr(compiled, "_cache", None)
        if cache is not None:
            cache.save_overload = lambda *_: None
    return cast("Function", compiled)
