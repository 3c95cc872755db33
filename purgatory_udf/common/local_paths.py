"""Which names are places of this machine."""

from __future__ import annotations

from pathlib import Path

from purgatory_udf.common.errors import NeedsSparkError

SCHEME = "file:"


def local_path(name: str) -> Path | None:
    """What a path, or a URI with `file:` before one slash or three, names on this machine; None for other schemes."""
    bare = name.removeprefix(SCHEME)
    if bare != name:
        return Path(bare.replace("//", "", 1) if bare.startswith("//") else bare)
    return None if "://" in name else Path(name)


def require_local_path(name: str) -> Path:
    """The same; `NeedsSparkError` where only Spark can look."""
    path = local_path(name)
    if path is None:
        raise NeedsSparkError(f"{name}: is not on this machine")
    return path
