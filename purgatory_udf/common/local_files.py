"""Files on this machine: paths, pipes, the files in a folder, their total size, and how much of them has been read."""

from __future__ import annotations

import glob
import io
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from purgatory_udf.common.errors import NeedsSparkError

SCHEME = "file:"
# Suffixes of compressed files, and the assumed compression ratio.
PACKED = {".gz", ".zst", ".bz2", ".xz", ".lz4", ".parquet"}
UNPACKED_TIMES = 10
# No limit, for queries and imports of request logs, which spill to disk, and for work that proceeds file by file.
ANY_BYTES = 1 << 62
# The highest ratio that gzip reaches. A file that claims more is damaged.
_MOST_GZIP_TIMES = 1032


def local_path(name: str) -> Path | None:
    """Return the local path of a name; None for a URI of another scheme than `file:`.

    `file:` may be followed by one slash or by three.
    """
    bare = name.removeprefix(SCHEME)
    if bare != name:
        return Path(bare.replace("//", "", 1) if bare.startswith("//") else bare)
    return None if "://" in name else Path(name)


def require_local_path(name: str) -> Path:
    """Return the local path of a name. Raises `NeedsSparkError` for a remote path, which only Spark can read."""
    path = local_path(name)
    if path is None:
        raise NeedsSparkError(f"{name}: is not on this machine")
    return path


# Contents of the pipes that this process has read, by their path.
_pipes: dict[str, bytes] = {}


def open_file(path: str | Path) -> IO[bytes]:
    """Open a file for reading. A pipe, such as `<(zcat FILE)`, is read once and kept, so that it can be opened again.

    Raises:
        OSError: The file cannot be opened.
    """
    name = str(path)
    if name not in _pipes and not Path(name).is_fifo():
        return open(name, "rb")
    if name not in _pipes:
        with open(name, "rb") as pipe:
            _pipes[name] = pipe.read()
    return io.BytesIO(_pipes[name])


def pipes_read() -> Iterator[str]:
    """Yield the paths of the pipes that this process has read, which no other process can read again."""
    yield from _pipes


def files_below(
    folder: str | Path, skipped: list[str] | None = None, on_error: Callable[[OSError], object] | None = None
) -> Iterator[Path]:
    """Yield the files of a folder, searched recursively. Files may be deleted at the same time.

    Links to folders are followed, but no folder is searched twice.

    Args:
        folder: The folder.
        skipped: Gets the links that are not followed.
        on_error: Called for a folder that cannot be read; by default, it counts as empty.
    """
    searched: set[tuple[int, int]] = set()
    pending = [str(folder)]
    # Links are followed last, so that a folder has its own path where that is below the given one.
    while pending:
        start = pending.pop(0)
        for path, folders, names in os.walk(start, onerror=on_error):
            try:
                identity = identity_of(path)
            except OSError:
                continue
            if identity in searched:
                folders.clear()
                if skipped is not None:
                    skipped.append(path)
                continue
            searched.add(identity)
            pending += sorted(link for name in folders if os.path.islink(link := os.path.join(path, name)))
            yield from (Path(path, name) for name in names)


def identity_of(path: str | Path) -> tuple[int, int]:
    """Return device and inode of a file, which are equal for all paths of the same file."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def is_small_and_local(paths: Iterable[str], most: int) -> bool:
    """Return whether the paths are local and not empty, with at most `most` bytes of text in total."""
    given, left = list(paths), most
    for path in given:
        if not is_local_path(path):
            return False
        size = 0 if most == ANY_BYTES else local_bytes([path], left)
        if size is None or not (size or any(_files(path))):
            return False
        left -= size
    return bool(given)


def is_local_path(path: str) -> bool:
    """Return whether the path is on the local file system."""
    # Hadoop's configuration may set another default file system.
    return local_path(path) is not None and "HADOOP_CONF_DIR" not in os.environ


def local_bytes(paths: Iterable[str], most: int) -> int | None:
    """Return the total bytes of text of local paths; None if they exceed `most`, or if a path is not local."""
    total = 0
    for path in paths:
        if local_path(path) is None:
            return None
        for file in _files(path):
            with suppress(FileNotFoundError):
                total += _unpacked_bytes(file)
            if total > most:
                return None
    return total


def _unpacked_bytes(file: Path) -> int:
    """Return the bytes of text of a file; of a compressed file an estimate.

    A gzip file ends with its unpacked size, modulo 2**32. If it has several members, that is the size of the last one.
    """
    size = file.stat().st_size
    if file.suffix not in PACKED:
        return size
    stored = 0
    if file.suffix == ".gz" and size >= 4:
        with file.open("rb") as packed:
            packed.seek(-4, os.SEEK_END)
            stored = int.from_bytes(packed.read(4), "little")
    return max(UNPACKED_TIMES * size, stored if stored <= _MOST_GZIP_TIMES * size else 0)


def _files(path: str) -> Iterator[Path]:
    """Yield the files that `path` names: a file, all files of a folder, or those that match a glob pattern.

    A file or folder of this name takes precedence, because names may have brackets. Files may be deleted at the same
    time.
    """
    place = local_path(path)
    assert place is not None
    for match in [place] if os.path.exists(place) else map(Path, glob.iglob(str(place), recursive=True)):
        if match.is_file():
            yield match
        else:
            yield from files_below(match)


class ReadTotals:
    """Bytes of text and lines that the threads of this process and of its later forks have read, in shared memory."""

    # A thread or a fork seldom has the same slot as another; a total would then be too small.
    _SLOTS = 256

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 16 * self._SLOTS)).cast("q")

    def add(self, size: int, lines: int) -> None:
        """Add to the totals."""
        slot = threading.get_native_id() % self._SLOTS * 2
        self._numbers[slot] += size
        self._numbers[slot + 1] += lines

    def sums(self) -> tuple[int, int]:
        """Return the number of bytes and of lines."""
        return sum(self._numbers[0::2]), sum(self._numbers[1::2])


# What the readers of input files have read.
read_totals = ReadTotals()
