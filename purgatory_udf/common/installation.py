"""Where the jobs, the settings and the sample data are: in a source tree, and installed from a wheel.

In a source tree, `jobs/` and `conf/` are next to the package. A wheel has both in the package (`setup.py`), because a
top-level package `jobs` could conflict with another. The folder that contains the two is called the root. Files that
can be recreated are in `.venv` of the tree, or in the user's cache folder.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def is_installed(root: Path) -> bool:
    """Return whether the root is the package itself, as installed from a wheel."""
    return (root / "__init__.py").is_file()


# The root of this program. On workers, which have the package only, it has neither jobs nor settings.
ROOT = _PACKAGE if (_PACKAGE / "jobs" / "__init__.py").is_file() else _PACKAGE.parent
# The command that runs jobs, as users type it.
COMMAND = "purgatory-replay" if is_installed(ROOT) else "./spark-submit.sh"
PROGRAM = Path(COMMAND).name


def conf_folder() -> Path:
    """Return the folder of settings, scenarios and sample data.

    A job in Spark finds it by `PURGATORY_HOME`, because its package may be a zip.
    """
    return Path(os.environ.get("PURGATORY_HOME") or ROOT) / "conf"


def job_module(name: str) -> str:
    """Return the full name of the module of the job `name`, such as `jobs.replay`."""
    return f"purgatory_udf.jobs.{name}" if is_installed(ROOT) else f"jobs.{name}"


def import_folder(root: Path) -> Path:
    """Return the folder from which Python imports the package of this root."""
    return root.parent if is_installed(root) else root


def user_cache_folder() -> Path:
    """Return the user's folder for files that can be recreated; it may be missing or read-only.

    It is `purgatory-replay` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "purgatory-replay")


def code_folders() -> list[Path]:
    """Return the folders for compiled code (`code_cache`), in the order of use; some may be missing."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    package = _PACKAGE / "rules" / "engine" / "jit"
    return [
        *([Path(configured)] if configured else []),
        *([package / "__pycache__"] if package.is_dir() else []),
        user_cache_folder(),
        _temporary_folder(),
    ]


def _temporary_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"purgatory-replay-{os.getuid()}"


def is_trusted(place: Path) -> bool:
    """Return whether only this user can write there. Cached code is executed, and temporary folders are shared."""
    if place != _temporary_folder():
        return True
    status = place.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & stat.S_IWOTH


def made_files(root: Path) -> Path:
    """Return the folder of files that can be recreated: `.venv` of a source tree, else the user's cache folder."""
    return user_cache_folder() if is_installed(root) else root / ".venv"
