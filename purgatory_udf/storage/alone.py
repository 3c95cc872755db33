"""Two of a kind must not write one output at the same time: each job locks the folder that it writes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from purgatory_udf.errors import UserError
from purgatory_udf.storage.outputs import local_folder


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
