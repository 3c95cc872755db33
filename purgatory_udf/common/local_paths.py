"""Which names are places of this machine."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.common.errors import NeedsSparkError

SCHEME = "file:"


def path_here(name: str) -> Path | None:
    """What a path, or a URI with `file:` before one slash or three, names on this machine; None for other schemes."""
    bare = name.removeprefix(SCHEME)
    if bare != name:
        return Path(bare.replace("//", "", 1) if bare.startswith("//") else bare)
    return None if "://" in name else Path(name)


def require_here(name: str) -> Path:
    """The same; `NeedsSparkError` where only Spark can look."""
    path = path_here(name)
    if path is None:
        raise NeedsSparkError(f"{name}: is not on this machine")
    return path
