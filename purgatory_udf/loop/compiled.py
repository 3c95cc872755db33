"""How the loop is compiled: by numba, on first use, kept on disk.

Helpers are handed records, which are pointers: nothing is counted, copied or allocated on the way (see `tables`).
`NUMBA_DISABLE_JIT=1` runs the same code uncompiled.

numba looks whether the file of an entry has changed, but not the helpers that it calls, and by itself it keeps what it
makes of a package in an archive under the user's home, or fails. So what is compiled is kept in a folder of our own,
named after all of the loop's sources: beside them if that can be written, else in the user's cache, else with the
temporary files. It can be carried elsewhere, with the sources. Where all of it has been compiled (`mark_whole`) that is
read, also by who may not write there. Where nothing can be written a process compiles for itself.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

# One machine's compiled loop must run on the others of a cluster.
os.environ.setdefault("NUMBA_CPU_NAME", "generic")

import numba
import numpy as np
from numba.core import types
from numba.core.caching import UserProvidedCacheLocator
from numba.extending import models, register_model, typeof_impl

from purgatory_udf.loop.helper import Helper
from purgatory_udf.loop.words import Numbers

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
    if _FOLDER is None:
        return cast("Function", numba.njit(nogil=True, error_model="numpy")(function))
    config: Any = numba.config
    theirs, config.CACHE_LOCATOR_CLASSES = config.CACHE_LOCATOR_CLASSES, f"{__name__}.{Kept.__name__}"
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = theirs
    if not os.access(_FOLDER, os.W_OK):
        # What somebody else has compiled is read; what is not among it, this process keeps for itself.
        kept = getattr(compiled, "_cache", None)
        if kept is not None:
            kept.save_overload = lambda *_: None
    return cast("Function", compiled)


class Kept(UserProvidedCacheLocator):
    """Where numba keeps an entry. The folder's name says all of the sources, so their dates say nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._cache_path = str(_FOLDER)

    def get_source_stamp(self) -> int:
        return 0

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Kept:
        return cls(function)


def fingerprint() -> str:
    """Of everything that the compiled code depends on."""
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__} {sys.version}".encode())
    folder = resources.files("purgatory_udf.loop")
    sources = [path for path in folder.iterdir() if path.name.endswith(".py")]
    for source in sorted(sources, key=lambda path: path.name):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def is_wanted() -> bool:
    """Whether something may be lacking that could be compiled and kept."""
    config: Any = numba.config
    if _FOLDER is None or config.DISABLE_JIT:
        return False
    return os.access(_FOLDER, os.W_OK) and not is_whole()


def is_whole() -> bool:
    """Whether all of it is there to be read."""
    return _FOLDER is not None and (_FOLDER / _WHOLE).is_file()


def mark_whole() -> None:
    """For whoever has had all of it compiled."""
    if _FOLDER is not None and is_wanted():
        (_FOLDER / _WHOLE).touch()


def _places() -> list[Path]:
    asked = os.environ.get("NUMBA_CACHE_DIR")
    here = Path(__file__).parent
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    beside = [here / "__pycache__"] if here.is_dir() else []
    return [*([Path(asked)] if asked else []), *beside, Path(home) / "purgatory-replay", _temporary()]


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"purgatory-replay-{os.getuid()}"


def _folder(places: list[Path], name: str) -> Path | None:
    """The first of them in which there is all of it, or in which it can be put."""
    for place in places:
        folder = place / name
        if not (folder / _WHOLE).is_file():
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if not os.access(folder, os.W_OK):
                continue
        if _is_trusted(place):
            return folder
    return None


def _is_trusted(place: Path) -> bool:
    """What lies there is run. Among the temporary files anybody may have made a folder with the name of ours."""
    if place != _temporary():
        return True
    status = place.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & stat.S_IWOTH


# An empty file in a folder that lacks nothing.
_WHOLE = "whole"
_FOLDER = _folder(_places(), f"loop-{fingerprint()}")
