"""Layout of an output folder (public tables, internal files in `_replay`), and the lock of each job."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import SCHEME, local_path

# Folder of an import for its rows, in the output folder.
STAGING = "_ingest"


def _require_name(out: str) -> None:
    """Raise `UserError` for a name of a folder that would mean another one, or that has a control character."""
    if not out.strip():
        raise UserError("the output folder has an empty name; `.` is the current folder")
    if any(ord(character) < 32 or ord(character) == 127 for character in out):
        raise UserError(f"{out!r}: the name of the output folder has a control character, such as a line break")


@dataclass(frozen=True)
class Layout:
    """The paths of the public tables and the internal files in the output folder `out`."""

    out: str

    def __post_init__(self) -> None:
        _require_name(self.out)

    def table(self, name: str) -> str:
        return f"{self.out.rstrip('/')}/{name}"

    @property
    def internal(self) -> str:
        return self.table("_replay")

    @property
    def answers(self) -> str:
        """Path of the table of replayed responses to requests of group members, except successful heartbeats."""
        return f"{self.internal}/group_answers"

    @property
    def coordinators(self) -> str:
        """Path of the folder with the state of the coordinators' gauges after each of the last batches."""
        return f"{self.internal}/coordinators"

    def path_of(self, table: str) -> str:
        """Return the path of a public or internal table."""
        return self.answers if table == "group_answers" else self.table(table)

    def control(self, query: str) -> str:
        """Return the path of a query's control table. Its drain row moves the watermark past the end of a trace."""
        return f"{self.internal}/control/{query}"

    @property
    def staged(self) -> str:
        """Path of a copy of the events, which is made if the table's files are too large or not in time order."""
        return f"{self.internal}/events"

    def checkpoint(self, query: str) -> str:
        return f"{self.internal}/checkpoints/{query}"


def local_folder(out: str) -> Path | None:
    """Return the folder as a local path, or None if it may be on another file system, such as Hadoop's default."""
    return None if not out.startswith(SCHEME) and os.environ.get("HADOOP_CONF_DIR") else local_path(out)


def require_folder(out: str) -> None:
    """Raise `UserError` if a local folder does not exist. Remote folders are not checked."""
    folder = local_folder(out)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{out}: no such folder")


def same_place(path: str, other: str) -> bool:
    """Return whether two paths (relative, absolute or URI) refer to the same folder."""
    folder, other_folder = local_folder(path), local_folder(other)
    if folder is None or other_folder is None:
        return path.rstrip("/") == other.rstrip("/")
    return folder.absolute() == other_folder.absolute()


@contextmanager
def output_lock(out: str, job: str) -> Iterator[None]:
    """Lock the folder, because two jobs of a kind must not write to it at the same time.

    The kernel releases the lock when the process exits, even if it is killed. A remote folder is not locked, but Delta
    prevents two writers from creating the same version of a table.

    Raises:
        UserError: If another process holds the lock, or the folder cannot be written.
    """
    _require_name(out)
    folder = local_folder(out)
    if folder is None or folder.is_file():
        yield
        return
    lock = folder / f".{job}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written: {error.strerror}; fix this, or choose another --out, and repeat the command"
        ) from None
    try:
        _acquire(file, out, job)
        yield
    finally:
        os.close(file)


def is_locked(out: str, job: str) -> bool:
    """Return whether a job of this name is writing to the folder. A remote folder counts as locked."""
    folder = local_folder(out)
    if folder is None:
        return True
    try:
        file = os.open(folder / f".{job}.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(file)
    return False


def _acquire(file: int, out: str, job: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            return  # A file system without locks.
        holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
        raise UserError(
            f"{out}: {holder} is writing to it; wait until that {job} has finished, or stop it, or choose another --out"
        ) from None
    holder_text = f"process {os.getpid()}, since {datetime.now(UTC):%F %T},"
    os.truncate(file, 0)
    os.pwrite(file, holder_text.encode(), 0)
