"""How a helper is compiled: for those who call it, and not for itself.

By default numba optimizes each helper together with all that it calls, and makes machine code of that, though Python
calls none: what lies deepest is done a dozen times over. Here a helper's calls are joined to it and no more; the rest
is done once, in the entry. That takes a third of the time, for code that is as fast.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.typed_passes import AnnotateTypes, NativeLowering


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
