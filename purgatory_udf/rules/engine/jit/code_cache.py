"""The folder where compiled code is cached.

numba invalidates the cached code of an entry point when its file changes, but not when a helper that it calls does; and
it does not cache functions of a zipped package next to it. So this package has its own folder, named after a
fingerprint of the sources: the first usable one of

1. `$NUMBA_CACHE_DIR`,
2. `__pycache__` of this package, if it is not zipped,
3. `purgatory-replay` in `$XDG_CACHE_HOME` or `~/.cache`,
4. a folder of the user's own among the temporary files.

A complete folder (`mark_complete`) is also read by processes that may not write to it, and can be copied to another
machine with the sources. If no folder is usable, each process compiles for itself.

`line_layout` finds the code of `line_scanner` in the same folders without importing numba.

The code also depends on the pipeline that compiles helpers: the one of `numba_pipeline`, or numba's default. The
former uses internals of one version of numba. If another version is installed, or the internals are missing, the engine
still works: it takes about three times as long to compile and up to a fifth longer to run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core.caching import UserProvidedCacheLocator

from purgatory_udf.common.installation import code_folders, is_trusted

log = logging.getLogger(__name__)

# As in pyproject.toml.
PINNED_NUMBA = "0.68.1"


def _helper_pipeline() -> type | None:
    if numba.__version__ == PINNED_NUMBA:
        try:
            from purgatory_udf.rules.engine.jit.numba_pipeline import HelperCompiler
        except (ImportError, AttributeError, TypeError) as error:
            reason = f"lacks expected internals ({error})"
        else:
            return HelperCompiler
    else:
        reason = f"is not the tested version {PINNED_NUMBA}"
    log.warning("numba %s %s: the engine takes longer to compile", numba.__version__, reason)
    return None


# The compiler class, or None for numba's default.
HELPER_PIPELINE = _helper_pipeline()


# Packages with compiled functions.
_COMPILED_PACKAGES = (
    "purgatory_udf.rules.engine",
    "purgatory_udf.rules.engine.jit",
    "purgatory_udf.rules.engine.loop",
    "purgatory_udf.rules.groups",
)


class CacheLocator(UserProvidedCacheLocator):
    """Locates the cache of an entry point for numba.

    The folder depends on all sources, so their timestamps do not matter.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._cache_path = str(FOLDER)

    def get_source_stamp(self) -> int:
        return 0

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> CacheLocator:
        return cls(function)


def fingerprint() -> str:
    """Return a hash of everything that the compiled code depends on."""
    pipeline = HELPER_PIPELINE.__name__ if HELPER_PIPELINE else "default"
    digest = hashlib.sha256(f"{numba.__version__} {pipeline} {np.__version__} {sys.version}".encode())
    for package in _COMPILED_PACKAGES:
        sources = [path for path in resources.files(package).iterdir() if path.name.endswith(".py")]
        for source in sorted(sources, key=lambda path: path.name):
            digest.update(f"{package}/{source.name}".encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def needs_warm_up() -> bool:
    """Return whether the cache is incomplete and can be completed."""
    config: Any = numba.config
    if FOLDER is None or config.DISABLE_JIT:
        return False
    return os.access(FOLDER, os.W_OK) and not is_complete()


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


# An empty file that marks a complete folder.
_COMPLETE = "complete"
FOLDER = _first_usable(code_folders(), f"loop-{fingerprint()}")
