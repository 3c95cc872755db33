"""Where a run keeps what: the public tables beside each other, its own machinery under `_replay`."""

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
from purgatory_udf.common.local_paths import SCHEME, local_path


@dataclass(frozen=True)
class Layout:
    out: str

    def table(self, name: str) -> str:
        return f"{self.out.rstrip('/')}/{name}"

    @property
    def machinery(self) -> str:
        return self.table("_replay")

    @property
    def relay(self) -> str:
        """Events on their way from groups that see a share of some operations to their brokers' groups, packed."""
        return f"{self.machinery}/relay"

    @property
    def answers(self) -> str:
        """What groups' requests were answered, but for signs of life that are well."""
        return f"{self.machinery}/told"

    @property
    def coordinators(self) -> str:
        """What waits in the groups' purgatories, after each of the last batches."""
        return f"{self.machinery}/coordinators"

    def path_of(self, table: str) -> str:
        """Of a public table, or of one that only the run itself reads."""
        return {"relay": self.relay, "told": self.answers}.get(table) or self.table(table)

    def control(self, query: str) -> str:
        """The row that lets the query's clock run past the end of a finished trace."""
        return f"{self.machinery}/control/{query}"

    @property
    def staged(self) -> str:
        """The events in files of the wanted size, where the given table's files are larger or not in time order."""
        return f"{self.machinery}/events"

    def checkpoint(self, query: str) -> str:
        return f"{self.machinery}/checkpoints/{query}"


# What can be said of an output folder before Spark is started.


def local_folder(out: str) -> Path | None:
    """The folder, if it can only be this machine's."""
    return None if not out.startswith(SCHEME) and os.environ.get("HADOOP_CONF_DIR") else local_path(out)


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


# Two of a kind must not write one output at the same time: each job locks the folder that it writes.


@contextmanager
def alone(out: str, job: str) -> Iterator[None]:
    """Hold the folder for this job; a UserError says who else does, or why nothing can be written there.

    The kernel drops the lock with the process, however it ends, so none is ever left behind. A folder that is not this
    machine's is not locked: there, Delta lets no two writers make the same version of a table.
    """
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
            f"{out}: cannot be written: {error.strerror}; put that right, or choose another --out, and give the same "
            "command again"
        ) from None
    try:
        _take(file, out, job)
        yield
    finally:
        os.close(file)


def is_held(out: str, job: str) -> bool:
    """Whether such a job writes there at this moment; of a folder elsewhere nobody knows, so it is taken for held."""
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


def _take(file: int, out: str, job: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            return  # A file system without locks.
        holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
        raise UserError(
            f"{out}: {holder} is writing there; wait until that {job} has ended, or stop it, or choose another --out"
        ) from None
    begun = f"process {os.getpid()}, since {datetime.now(UTC):%F %T},"
    os.truncate(file, 0)
    os.pwrite(file, begun.encode(), 0)
