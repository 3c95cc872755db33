"""numba's pipeline for helpers, which only compiled code calls.

By default numba optimizes each helper together with everything it calls, and generates machine code for it although
Python never calls it, so the innermost helpers are compiled a dozen times over. Here a helper's library is only linked
with those of its callees; optimization and code generation happen once, in the entry point. That takes a third of the
compilation time, for code that is as fast.

The module relies on internals of one version of numba; only `code_cache` imports it, after a check.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import AnnotateTypes, NativeLowering


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
    """Compiler pass that creates the `LinkOnlyLibrary` into which a helper is lowered."""

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
    """Compiler pass that registers a lowered helper, so that compiled code can call it. Python cannot call it."""

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
    """The pipeline that compiles helpers: numba's, with the two passes of this module."""

    def define_pipelines(self) -> list[Any]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_UseLinkOnlyLibrary, AnnotateTypes)
        passes.add_pass_after(_RegisterHelper, NativeLowering)
        passes.finalize()
        return [passes]
