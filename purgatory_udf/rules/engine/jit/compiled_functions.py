"""Decorators of compiled functions: entry points, which Python calls, and helpers, which only compiled code calls.

Helpers have their own pipeline (`numba_pipeline`). It relies on internals of numba, which is therefore pinned to one
version. With another version, helpers are compiled as numba does by default (`code_cache`), with the same results.

Helpers get records as pointers, without reference counts, copies or allocations (see `records`). With
`NUMBA_DISABLE_JIT=1` the same functions run uncompiled.

At the end: arithmetic and memory reads as single instructions, where Python's own operators take several.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic, models, register_model, typeof_impl

from purgatory_udf.rules.engine.jit import Int64EnumMeta, code_cache
from purgatory_udf.rules.engine.jit.code_cache import HELPER_PIPELINE
from purgatory_udf.rules.engine.jit.line_layout import MachineCode, code_file, stored_code
from purgatory_udf.rules.engine.jit.records import COMPILED, emit_prefetch

Function = TypeVar("Function", bound=Callable[..., Any])
# Functions by name, with numba's types of their arguments.
Compilable = Mapping[str, tuple[Callable[..., int], tuple[Any, ...]]]

# A constant. numba specializes a helper for each literal Python integer that it is called with; this is not a literal.
int64 = cast("Callable[[int], int]", np.int64)
# An index. For signed ones, compiled code checks in each access whether they are negative.
uint64 = cast("Callable[[int], int]", np.uint64)


class _Int64EnumType(types.IntEnumClass):
    """numba's type of enumerations: members such as `Code.FETCH` are int64 in compiled code.

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
    """Compile a function that only compiled code calls."""
    # Without an explicit `forceinline`, numba would use that of the first caller.
    return cast("Function", numba.njit(**_helper_options(forceinline=False))(function))


def inlined(function: Function) -> Function:
    """Compile a function that only compiled code calls, and inline it at every call.

    It is meant for functions that are small or have one caller. For these a call costs more than the body, but inlining
    everything would take minutes to compile.
    """
    return cast("Function", numba.njit(**_helper_options(forceinline=True))(function))


def entry_point(function: Function) -> Function:
    """Compile a function that Python calls, and cache its machine code (`code_cache`). It runs without the GIL."""
    if code_cache.FOLDER is None:
        return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))
    config: Any = numba.config
    default_locators = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = f"{code_cache.__name__}.{code_cache.CacheLocator.__name__}"
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = default_locators
    cache = getattr(compiled, "_cache", None)
    if cache is not None and HELPER_PIPELINE is not None:
        cache.load_overload = partial(_cached_code, cache)
    if cache is not None and not os.access(code_cache.FOLDER, os.W_OK):
        # Read-only cache: load from it, and keep other compiled code in memory.
        cache.save_overload = lambda *_: None
    return cast("Function", compiled)


def _cached_code(cache: Any, signature: Any, context: Any) -> Any:
    """Load compiled code as numba's cache does, but without all modules that only a compilation needs.

    numba imports these for 0.2 s with the first code that it loads. A compilation imports them itself.
    """
    from numba.core.runtime.nrt import rtsys

    rtsys.initialize(context)
    with cache._guard_against_spurious_io_errors():
        return cache._load_overload(signature, context)


def in_object_file(functions: Compilable) -> Mapping[str, Callable[..., int]]:
    """Compile functions that are called without numba (`line_layout`), and store their code in the cache.

    Args:
        functions: The functions, which must neither allocate nor raise.
    """
    if not COMPILED:
        return {name: function for name, (function, _) in functions.items()}
    stored = stored_code()
    if stored is None:
        code = _object_code(functions)
        if code_cache.FOLDER is not None and os.access(code_cache.FOLDER, os.W_OK):
            draft = code_cache.FOLDER / f"{code_file()}.{os.getpid()}"
            draft.write_bytes(code)
            draft.replace(code_cache.FOLDER / code_file())
        stored = MachineCode(code)
    return {name: stored.function(name) for name in functions}


def _object_code(functions: Compilable) -> bytes:
    """Compile functions, and return an object file in which they have their names."""
    joined = binding.parse_assembly("")
    for name, (function, arguments) in functions.items():
        options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        compiled: Any = numba.njit(**options)(function)
        compiled.compile(arguments)
        module = binding.parse_assembly(compiled.inspect_llvm(arguments))
        for each in module.functions:
            if not each.is_declaration:
                is_wanted = each.name == compiled.overloads[arguments].fndesc.llvm_func_name
                # The others are functions of numba's runtime, which other compiled code of the process has, too.
                each.name, each.linkage = (name, "external") if is_wanted else (each.name, "internal")
        joined.link_in(module)
    machine = binding.Target.from_default_triple().create_target_machine(cpu="generic", opt=3, jit=True)
    code: bytes = machine.emit_object(joined)
    return code


def _python_lowest_set_bit(bits: int) -> int:
    return (int(bits) & -int(bits)).bit_length() - 1


@intrinsic
def _compiled_count_bits(typing: Any, bits: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), code


def _python_count_bits(bits: int) -> int:
    return (int(bits) & (1 << 64) - 1).bit_count()


@intrinsic
def _compiled_floor_div(typing: Any, amount: Any, unit: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.udiv(*arguments)

    return types.int64(types.int64, types.int64), code


def _python_floor_div(amount: int, unit: int) -> int:
    assert amount >= 0
    return amount // unit


# `lowest_set_bit(bits)`: number of trailing zeros; `bits` must not be 0.
lowest_set_bit = cast("Callable[[int], int]", trailing_zeros) if COMPILED else _python_lowest_set_bit
# `count_bits(bits)`: number of bits that are set, of 64.
count_bits = cast("Callable[[int], int]", _compiled_count_bits) if COMPILED else _python_count_bits
# `floor_div(amount, unit)` of an amount that is not negative, as times are not. A signed division rounds towards zero,
# and takes twice as many instructions to correct that.
floor_div = cast("Callable[[int, int], int]", _compiled_floor_div) if COMPILED else _python_floor_div


def _compiled_loader(bits: int) -> Callable[[int, int], int]:
    long, kind = ir.IntType(64), ir.IntType(bits)

    def load(typing: Any, address: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start, place = arguments
            at = builder.add(start, builder.mul(place, ir.Constant(long, bits // 8)))
            # Strings are read eight bytes at a time from any address.
            value = builder.load(builder.inttoptr(at, kind.as_pointer()), align=1)
            if bits == 64:
                return value
            return (builder.zext if bits == 8 else builder.sext)(value, long)

        return types.int64(types.int64, types.int64), code

    return cast("Callable[[int, int], int]", intrinsic(load))


def _python_loader(kind: Any) -> Callable[[int, int], int]:
    def load(address: int, index: int) -> int:
        return int(kind.from_address(int(address) + int(index) * ctypes.sizeof(kind)).value)

    return load


# `load_int32(address, 7)` is the eighth 32-bit integer from the address on, in memory that others own.
load_uint8 = _compiled_loader(8) if COMPILED else _python_loader(ctypes.c_uint8)
load_int32 = _compiled_loader(32) if COMPILED else _python_loader(ctypes.c_int32)
load_int64 = _compiled_loader(64) if COMPILED else _python_loader(ctypes.c_int64)


@intrinsic
def _compiled_copy_16(typing: Any, to: Any, of: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(address, ir.IntType(128).as_pointer()) for address in arguments)
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


def _python_copy_16(to: int, of: int) -> None:
    ctypes.memmove(int(to), int(of), 16)


# `copy_16(to, of)` copies 16 bytes between two addresses.
copy_16 = cast("Callable[[int, int], None]", _compiled_copy_16) if COMPILED else _python_copy_16


@intrinsic
def _compiled_prefetch(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit_prefetch(builder, arguments[0], for_writing=False)
        return context.get_dummy_value()

    return types.void(types.int64), code


def _python_prefetch(address: int) -> None:
    pass


# `prefetch(address)` prefetches a cache line for reading. The address need not be valid.
prefetch = cast("Callable[[int], None]", _compiled_prefetch) if COMPILED else _python_prefetch
