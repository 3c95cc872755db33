"""Local paths: which names refer to files of this machine, and the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from purgatory_udf.common.errors import NeedsSparkError

SCHEME = "file:"


def local_path(name: str) -> Path | None:
    """Return the local path of a name; None for a URI of another scheme than `file:`.

    `file:` may be followed by one slash or by three.
    """
    bare = name.removeprefix(SCHEME)
    if bare != name:
        return Path(bare.replace("//", "", 1) if bare.startswith("//") else bare)
    return None if "://" in name else Path(name)


def require_local_path(name: str) -> Path:
    """Return the local path of a name; raise `NeedsSparkError` for a remote one, which only Spark can read."""
    path = local_path(name)
    if path is None:
        raise NeedsSparkError(f"{name}: is not on this machine")
    return path


def user_cache_folder() -> Path:
    """Return the user's folder for files that can be recreated; it may be missing or read-only.

    It is `purgatory-replay` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "purgatory-replay")
