"""Compiles entry points with numba, to object files that are used without numba (`code_cache`).

By default numba optimizes each helper together with everything it calls, and generates machine code for it although
Python never calls it, so the innermost helpers are compiled a dozen times over. `numba_pipeline` does it once, in the
entry point. It relies on internals of numba, which is therefore pinned to one version. With another version, helpers
are compiled as numba does by default, with the same results: it takes about three times as long, and the code takes up
to a fifth longer to run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model, typeof_impl
from numba.np.numpy_support import as_dtype

from purgatory_udf.rules.engine.jit import Int64EnumMeta
from purgatory_udf.rules.engine.jit.compiled_functions import Helper, Instruction
from purgatory_udf.rules.engine.jit.records import CACHE_LINE, DType

log = logging.getLogger(__name__)

# As in pyproject.toml.
PINNED_NUMBA = "0.68.1"

_INT, _LONG, _BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8)
_POINTER = _BYTE.as_pointer()
_memcpy = cast("Callable[..., Any]", cgutils.raw_memcpy)
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


@cache
def helper_pipeline() -> type | None:
    """Return the class that compiles helpers, or None for numba's default."""
    if numba.__version__ != PINNED_NUMBA:
        versions = numba.__version__, PINNED_NUMBA
        log.warning("numba %s is not the tested version %s: the engine takes longer to compile", *versions)
        return None
    from purgatory_udf.rules.engine.jit.numba_pipeline import HelperCompiler

    return HelperCompiler


@typeof_impl.register(Helper)
def _typeof_helper(helper: Helper, _context: Any) -> Any:
    return _dispatcher(helper)._numba_type_


@cache
def _dispatcher(helper: Helper) -> Any:
    pipeline = helper_pipeline()
    # Without an explicit `forceinline`, numba would use that of the first caller.
    options = (
        {"error_model": "numpy"}
        if pipeline is None
        else {**_OPTIONS, "pipeline_class": pipeline, "forceinline": helper.is_inlined}
    )
    return numba.njit(**options)(helper.function)


@typeof_impl.register(Instruction)
def _typeof_instruction(instruction: Instruction, _context: Any) -> Any:
    return _intrinsic_type(instruction)


@cache
def _intrinsic_type(instruction: Instruction) -> Any:
    intrinsic = _OPERATIONS[instruction.name](*instruction.arguments)
    context = cpu_target.typing_context
    # Before this, intrinsics defined during a compilation are unknown.
    context.refresh()
    return context.resolve_value_type(intrinsic)


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


def object_code(function: Callable[..., Any], arguments: Sequence[Any], symbol: str) -> bytes:
    """Compile a function for arguments of these types, and return an object file with the name `symbol` for it.

    The function in the file has a place for the results before the arguments, which are numpy's objects and integers.
    """
    signature = tuple(
        types.Array(numba.from_dtype(argument.dtype), argument.ndim, "C")
        if isinstance(argument, np.ndarray)
        else types.int64
        for argument in arguments
    )
    compiled: Any = numba.njit(**_OPTIONS)(function)
    compiled.compile(signature)
    wanted = compiled.overloads[signature].fndesc.llvm_func_name
    module = binding.parse_assembly(compiled.inspect_llvm(signature))
    module.link_in(binding.parse_assembly(str(_caller(symbol, wanted, signature))))
    for each in module.functions:
        if not each.is_declaration and each.name != symbol:
            # Also functions of numba's runtime, which other compiled code of the process has, too.
            each.linkage = "internal"
    machine = binding.Target.from_default_triple().create_target_machine(cpu="generic", opt=3, jit=True)
    code: bytes = machine.emit_object(module)
    return code


# The fields of an array in numpy's binary interface, after the header of each object of Python.
_HEADER = object.__basicsize__
_DATA, _DIMENSIONS, _SHAPE, _STRIDES, _FLAGS = (_HEADER + place for place in (0, 8, 16, 24, 48))
_CONTIGUOUS_AND_ALIGNED = 0x101
_OTHER_ARRAY = 1000


def _caller(name: str, compiled: str, signature: Sequence[Any]) -> ir.Module:
    """Return a module with a function that passes arguments as numba does: of an array, each field.

    The first two fields of an array, its owners in numba, are null. The function returns numba's status, or
    `_OTHER_ARRAY` for an array of another kind.
    """
    module = ir.Module()
    kinds = [_POINTER if isinstance(each, types.Array) else _LONG for each in signature]
    function = ir.Function(module, ir.FunctionType(_INT, [_POINTER, *kinds]), name)
    builder = ir.IRBuilder(function.append_basic_block())

    def field(start: Any, offset: int, kind: Any) -> Any:
        return builder.load(builder.bitcast(builder.gep(start, [_LONG(offset)]), kind.as_pointer()))

    values = [function.args[0], builder.bitcast(builder.alloca(_POINTER), _POINTER)]
    for argument, each in zip(function.args[1:], signature, strict=True):
        if not isinstance(each, types.Array):
            values.append(argument)
            continue
        flags = builder.and_(field(argument, _FLAGS, _INT), _INT(_CONTIGUOUS_AND_ALIGNED))
        is_usual = builder.and_(
            builder.icmp_signed("==", flags, _INT(_CONTIGUOUS_AND_ALIGNED)),
            builder.icmp_signed("==", field(argument, _DIMENSIONS, _INT), _INT(each.ndim)),
        )
        with builder.if_then(builder.not_(is_usual)):
            builder.ret(_INT(_OTHER_ARRAY))
        lists = [field(argument, place, _POINTER) for place in (_SHAPE, _STRIDES)]
        lengths, strides = ([field(of, 8 * n, _LONG) for n in range(each.ndim)] for of in lists)
        size = lengths[0]
        for length in lengths[1:]:
            size = builder.mul(size, length)
        item_size = _LONG(as_dtype(each.dtype).itemsize)
        owners = _POINTER(None), _POINTER(None)
        values += (*owners, size, item_size, field(argument, _DATA, _POINTER), *lengths, *strides)
    target = ir.Function(module, ir.FunctionType(_INT, [value.type for value in values]), compiled)
    builder.ret(builder.call(target, values))
    return module


# Operations of compiled code (`Instruction`). Each of these functions returns an intrinsic of numba: a function that
# returns the signature, and a function that emits the instructions.


def lowest_set_bit() -> Any:
    """Return `lowest_set_bit(bits)`."""

    def operation(typing: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), code

    return intrinsic(operation)


def count_bits() -> Any:
    """Return `count_bits(bits)`."""

    def count(typing: Any, bits: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.ctpop(arguments[0])

        return types.int64(types.int64), code

    return intrinsic(count)


def floor_div() -> Any:
    """Return `floor_div(amount, unit)`."""

    def divide(typing: Any, amount: Any, unit: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.udiv(*arguments)

        return types.int64(types.int64, types.int64), code

    return intrinsic(divide)


def loader(bits: int) -> Any:
    """Return `load(address, index)` of integers with this number of bits; 8 bits are unsigned."""

    def load(typing: Any, address: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start, place = arguments
            at = builder.add(start, builder.mul(place, ir.Constant(_LONG, bits // 8)))
            # Strings are read eight bytes at a time from any address.
            value = builder.load(builder.inttoptr(at, ir.IntType(bits).as_pointer()), align=1)
            if bits == 64:
                return value
            return (builder.zext if bits == 8 else builder.sext)(value, _LONG)

        return types.int64(types.int64, types.int64), code

    return intrinsic(load)


def copy_16() -> Any:
    """Return `copy_16(to, of)`."""

    def copy(typing: Any, to: Any, of: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, source = (builder.inttoptr(address, ir.IntType(128).as_pointer()) for address in arguments)
            builder.store(builder.load(source, align=1), target, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    return intrinsic(copy)


def prefetch() -> Any:
    """Return `prefetch(address)`."""

    def fetch(typing: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _emit_prefetch(builder, arguments[0], for_writing=False)
            return context.get_dummy_value()

        return types.void(types.int64), code

    return intrinsic(fetch)


def _emit_prefetch(builder: Any, address: Any, for_writing: bool) -> None:
    """Emit the instruction that prefetches the cache line at an address into all levels of the data cache."""
    function = ir.FunctionType(ir.VoidType(), [_POINTER, _INT, _INT, _INT])
    llvm_prefetch = builder.module.declare_intrinsic("llvm.prefetch", [_POINTER], function)
    builder.call(llvm_prefetch, [builder.inttoptr(address, _POINTER), _INT(int(for_writing)), _INT(3), _INT(1)])


def accessor(dtype: DType, address_offset: int) -> Any:
    """Return `at(arena, row)`: a row of a table with this dtype. The table's address is a field of the arena."""
    record, row_address = numba.from_dtype(dtype), _row_address(dtype, address_offset)

    def at(typing: Any, arena: Any, row: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(row_address(builder, *arguments), context.get_value_type(record))

        return record(arena, types.int64), code

    return intrinsic(at)


def _row_address(dtype: DType, address_offset: int) -> Callable[[Any, Any, Any], Any]:
    """Return a function that emits the instructions which compute the address of a row."""

    def row_address(builder: Any, arena: Any, row: Any) -> Any:
        field = builder.gep(builder.bitcast(arena, _POINTER), [ir.Constant(_LONG, address_offset)])
        address = builder.load(builder.bitcast(field, _LONG.as_pointer()))
        # Tables never move during a call.
        address.set_metadata("invariant.load", builder.module.add_metadata([]))
        return builder.add(address, builder.mul(row, ir.Constant(_LONG, dtype.itemsize)))

    return row_address


def prefetcher(dtype: DType, address_offset: int) -> Any:
    """Return `prefetch(arena, row)`; see `accessor`."""
    row_address = _row_address(dtype, address_offset)

    def fetch(typing: Any, arena: Any, row: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = row_address(builder, *arguments)
            for line in range(0, dtype.itemsize, CACHE_LINE):
                _emit_prefetch(builder, builder.add(start, ir.Constant(_LONG, line)), for_writing=True)
            return context.get_dummy_value()

        return types.void(arena, types.int64), code

    return intrinsic(fetch)


def record_copier(size: int) -> Any:
    """Return `copy(to, of)`, which copies the first bytes of a record."""

    def copy(typing: Any, to: Any, of: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to_bytes, of_bytes = (builder.bitcast(row, _POINTER) for row in arguments)
            _memcpy(builder, to_bytes, of_bytes, ir.Constant(_LONG, size), 1, 8)
            return context.get_dummy_value()

        return types.void(to, of), code

    return intrinsic(copy)


def copy_rows() -> Any:
    """Return `copy_rows(to, at, of, first, count)`."""

    def copy(typing: Any, to: Any, at: Any, of: Any, first: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to_rows, to_first, of_rows, of_first, rows = arguments
            table_type = signature.args[0]
            target, source = (
                builder.gep(context.make_array(table_type)(context, builder, table).data, [start])
                for table, start in ((to_rows, to_first), (of_rows, of_first))
            )
            _memcpy(builder, target, source, rows, table_type.dtype.size)
            return context.get_dummy_value()

        return types.void(to, at, of, first, count), code

    return intrinsic(copy)


def nested_accessor(dtype: DType, first: int) -> Any:
    """Return `at(record, n)`: the n-th of adjacent records of this dtype, which start at byte `first` of a record."""
    record = numba.from_dtype(dtype)

    def at(typing: Any, row: Any, n: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            outer, index = arguments
            offset = builder.add(builder.mul(index, ir.Constant(_LONG, dtype.itemsize)), ir.Constant(_LONG, first))
            inner = builder.gep(builder.bitcast(outer, _POINTER), [offset])
            return builder.bitcast(inner, context.get_value_type(record))

        return record(row, types.int64), code

    return intrinsic(at)


_OPERATIONS = {
    each.__name__: each
    for each in (
        lowest_set_bit,
        count_bits,
        floor_div,
        loader,
        copy_16,
        prefetch,
        accessor,
        prefetcher,
        record_copier,
        copy_rows,
        nested_accessor,
    )
}
