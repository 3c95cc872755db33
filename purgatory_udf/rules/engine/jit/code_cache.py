"""Where compiled code is kept.

numba looks whether the file of an entry has changed, but not the helpers that it calls, and by itself it keeps what it
makes of a package in an archive under the user's home, or fails. So what is compiled is kept in a folder of our own,
named after all of the sources: beside them if that can be written, else in the user's cache, else with the
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
from typing import Any

import numba
import numpy as np
from numba.core.caching import UserProvidedCacheLocator

# Packages of which something is compiled.
_COMPILED = (
    "purgatory_udf.rules.engine.jit",
    "purgatory_udf.rules.engine.loop",
    "purgatory_udf.rules.engine.columns",
    "purgatory_udf.rules.groups",
)


class Kept(UserProvidedCacheLocator):
    """Where numba keeps an entry. The folder's name says all of the sources, so their dates say nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._cache_path = str(FOLDER)

    def get_source_stamp(self) -> int:
        return 0

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> Kept:
        return cls(function)


def fingerprint() -> str:
    """Of everything that the compiled code depends on."""
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__} {sys.version}".encode())
    for package in _COMPILED:
        sources = [path for path in resources.files(package).iterdir() if path.name.endswith(".py")]
        for source in sorted(sources, key=lambda path: path.name):
            digest.update(f"{package}/{source.name}".encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def is_wanted() -> bool:
    """Whether something may be lacking that could be compiled and kept."""
    config: Any = numba.config
    if FOLDER is None or config.DISABLE_JIT:
        return False
    return os.access(FOLDER, os.W_OK) and not is_whole()


def is_whole() -> bool:
    """Whether all of it is there to be read."""
    return FOLDER is not None and (FOLDER / _WHOLE).is_file()


def mark_whole() -> None:
    """For whoever has had all of it compiled."""
    if FOLDER is not None and is_wanted():
        (FOLDER / _WHOLE).touch()


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
FOLDER = _folder(_places(), f"loop-{fingerprint()}")
