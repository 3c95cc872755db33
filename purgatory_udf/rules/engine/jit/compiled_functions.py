"""Decorators of compiled functions: entry points, which Python calls, and helpers, which only compiled code calls.

By default numba optimizes each helper together with everything it calls, and generates machine code for it although
Python never calls it, so the innermost helpers are compiled a dozen times over. Here a helper's library is only linked
with those of its callees; optimization and code generation happen once, in the entry point. That takes a third of the
compilation time, for code that is as fast. It relies on internals of numba, which is therefore pinned to one version.

Helpers get records as pointers, without reference counts, copies or allocations (see `records`). With
`NUMBA_DISABLE_JIT=1` the same functions run uncompiled.
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

from purgatory_udf.rules.engine.jit import Int64EnumMeta, code_cache


class LinkOnlyLibrary(JITCodeLibrary):
    """The LLVM module of a helper and everything that it calls, without machine code."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        # Inline the functions marked for it, and optimize nothing else.
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)
        self._finalized = True


@register_pass(mutates_CFG=False, analysis_only=False)
class _UseLinkOnlyLibrary(LoweringPass):
    """Gives a helper a `LinkOnlyLibrary` to be lowered into."""

    _name = "use_link_only_library"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        library_class: Any = LinkOnlyLibrary
        state.library = library_class(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_compile = True
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class _RegisterHelper(LoweringPass):
    """Makes a lowered helper known to compiled callers. The function object is a name only; Python cannot call it."""

    _name = "register_helper"

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


class HelperCompiler(CompilerBase):
    """numba's pipeline for helpers."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_UseLinkOnlyLibrary, AnnotateTypes)
        passes.add_pass_after(_RegisterHelper, NativeLowering)
        passes.finalize()
        return [passes]


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


_HELPER_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "pipeline_class": HelperCompiler,
}


def helper(function: Function) -> Function:
    """Compile for compiled callers. Without an explicit `forceinline`, numba takes over that of the first caller."""
    return cast("Function", numba.njit(**_HELPER_OPTIONS, forceinline=False)(function))


def inlined(function: Function) -> Function:
    """Compile for compiled callers, and inline at every call.

    For functions that are small or have one caller: a call costs more than most of them do, but inlining everything
    would take minutes to compile.
    """
    return cast("Function", numba.njit(**_HELPER_OPTIONS, forceinline=True)(function))


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
