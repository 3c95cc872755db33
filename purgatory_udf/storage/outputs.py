"""What can be said of an output folder before Spark is started."""

from __future__ import annotations

import os
from pathlib import Path

from purgatory_udf.errors import UserError
from purgatory_udf.local.paths import SCHEME, path_here


def local_folder(out: str) -> Path | None:
    """The folder, if it can only be this machine's."""
    return None if not out.startswith(SCHEME) and os.environ.get("HADOOP_CONF_DIR") else path_here(out)


def require_folder(out: str) -> None:
    """Raise if there is no such folder; a place that only Spark can look at may be anything."""
    folder = local_folder(out)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{out}: no such folder")


def same_place(path: str, other: str) -> bool:
    """Whether two names are one folder's, be it named from here, from the root, or as a URI."""
    here, there = local_folder(path), local_folder(other)
    if here is None or there is None:
        return path.rstrip("/") == other.rstrip("/")
    return here.absolute() == there.absolute()
