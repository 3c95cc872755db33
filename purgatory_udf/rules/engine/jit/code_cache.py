"""Entry points of compiled code, which Python calls, and the folder with their machine code.

Python calls an entry point through ctypes. At the first call its machine code is read from an object file. If there is
no file, `numba_compiler` compiles it. So most processes neither import numba, which takes 0.2 s, nor prepare all
helpers for it, which takes as long.

The folder is named after a fingerprint of everything that the code depends on, and is the first usable one of

1. `$NUMBA_CACHE_DIR`,
2. `__pycache__` of this package, if it is not zipped,
3. `purgatory-replay` in `$XDG_CACHE_HOME` or `~/.cache`,
4. a folder of the user's own among the temporary files.

A complete folder (`mark_complete`) is also read by processes that may not write to it, and can be copied to another
machine with the sources. If no folder is usable, each process compiles for itself.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from purgatory_udf.common.installation import code_folders, is_trusted
from purgatory_udf.rules.engine.jit.compiled_functions import COMPILED, Function

# An empty file that marks a complete folder.
_COMPLETE = "complete"

# Packages with compiled functions.
_COMPILED_PACKAGES = (
    "purgatory_udf.rules.engine",
    "purgatory_udf.rules.engine.jit",
    "purgatory_udf.rules.engine.loop",
    "purgatory_udf.rules.groups",
)


def fingerprint() -> str:
    """Return a hash of everything that the compiled code depends on. Of Python that is only the minor version."""
    versions = metadata.version("numba"), np.__version__, str(sys.implementation.cache_tag), platform.machine()
    digest = hashlib.sha256(" ".join(versions).encode())
    for package in _COMPILED_PACKAGES:
        sources = [path for path in resources.files(package).iterdir() if path.name.endswith(".py")]
        for source in sorted(sources, key=lambda path: path.name):
            digest.update(f"{package}/{source.name}".encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def needs_warm_up() -> bool:
    """Return whether the cache is incomplete and can be completed."""
    return COMPILED and FOLDER is not None and os.access(FOLDER, os.W_OK) and not is_complete()


def is_complete() -> bool:
    """Return whether the code of every entry point is in the cache."""
    return FOLDER is not None and (FOLDER / _COMPLETE).is_file()


def mark_complete() -> None:
    """Mark the folder as complete, because every entry point has been compiled."""
    if FOLDER is not None and needs_warm_up():
        (FOLDER / _COMPLETE).touch()


def _first_usable(places: list[Path], name: str) -> Path | None:
    """Return `name` in the first place where it is complete or writable, and trusted."""
    for place in places:
        folder = place / name
        if not (folder / _COMPLETE).is_file():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if not os.access(folder, os.W_OK):
                continue
        if is_trusted(place):
            return folder
    return None


def _stored_code(name: str) -> bytes | None:
    """Return the object file with this name; None if it does not exist."""
    try:
        return (FOLDER / f"{name}.o").read_bytes() if FOLDER is not None else None
    except FileNotFoundError:
        return None


def _store_code(name: str, code: bytes) -> None:
    """Store an object file, if the folder can be written."""
    if FOLDER is not None and os.access(FOLDER, os.W_OK):
        draft = FOLDER / f"{name}.{os.getpid()}"
        draft.write_bytes(code)
        draft.replace(FOLDER / f"{name}.o")


@cache
def _load_code(name: str, code: bytes) -> int:
    """Load an object file, and return the address of the function in it, which has the name of the file."""
    from llvmlite import binding

    engine = _engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address: int = engine.get_function_address(name)
    return address


# A function of numba's runtime, which the compiled code would call when it frees an array; it frees none.
_UNUSED = "NRT_MemInfo_call_dtor"


@cache
def _engine() -> Any:
    """Return LLVM's engine, which owns all loaded code."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    if binding.address_of_symbol(_UNUSED) is None:
        binding.add_symbol(_UNUSED, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


class _Code(NamedTuple):
    """Machine code for arguments of certain types, and the number of its results."""

    function: Callable[..., int]
    number_of_results: int


# What machine code returns if it succeeds: numba's status for a result, and for None.
_SUCCESS = (0, -2)
# The places for its results.
_Results = ctypes.c_int64 * 3
# The types of the elements of arrays; None for an argument that is an integer.
_Types = tuple[np.dtype[Any] | None, ...]
_LOADING = threading.Lock()


class EntryPoint:
    """A function of which Python calls the machine code. The function runs without the GIL, and must not raise.

    Its arguments are integers and C-contiguous arrays, and its result is an integer, a tuple of integers, or None.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.name = function, f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self._codes: dict[_Types, _Code] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code, and load or compile it first if necessary."""
        types = tuple([argument.dtype if isinstance(argument, np.ndarray) else None for argument in arguments])
        code = self._codes.get(types)
        if code is None:
            with _LOADING:
                code = self._codes[types] = self._codes.get(types) or self._load(types, arguments)
        function, number_of_results = code
        results = _Results()
        status = function(results, *arguments)
        if status not in _SUCCESS:
            raise TypeError(f"{self.name}: arguments that are not contiguous, or an exception (status {status})")
        if number_of_results > 1:
            return tuple(results[:number_of_results])
        return results[0] if number_of_results else None

    def _load(self, types: _Types, arguments: tuple[Any, ...]) -> _Code:
        name = f"{self.name}-{hashlib.sha256(' '.join(map(str, types)).encode()).hexdigest()[:8]}"
        stored = _stored_code(name)
        if stored is None:
            from purgatory_udf.rules.engine.jit.numba_compiler import object_code

            stored = object_code(self.function, arguments, name)
            _store_code(name, stored)
        kinds = [ctypes.c_int64 if dtype is None else ctypes.py_object for dtype in types]
        function = ctypes.CFUNCTYPE(ctypes.c_int32, _Results, *kinds)(_load_code(name, stored))
        return _Code(function, str(self.function.__annotations__["return"]).count("int"))


def entry_point(function: Function) -> Function:
    """Compile a function that Python calls (`EntryPoint`), and store its machine code."""
    return cast("Function", EntryPoint(function)) if COMPILED else function


FOLDER = _first_usable(code_folders(), f"loop-{fingerprint()}")
