"""Size of a job's input, which decides whether it needs Spark, and with which settings."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from purgatory_udf.common.local_paths import files_below

# Bytes of text up to which a job is tiny or brief; Spark has settings for such jobs.
_TINY_BYTES, LITTLE_BYTES = 2_000_000, 128_000_000
# Maximum sizes, in bytes, of inputs that this process diagnoses, imports or replays in memory and within seconds.
DIAGNOSED_BYTES, IMPORTED_BYTES, REPLAYED_BYTES = 1_000_000_000, 512_000_000, 256_000_000
# No limit, for other queries, which spill to disk, and for work that proceeds file by file.
ANY_BYTES = 1 << 62
# Limit for request logs, which take eight times as much memory as disk.
LOG_BYTES = 256_000_000
# Most partitions of requests in a batch that one process replays; each takes 1 kB of memory.
REPLAYED_WATCHES = 1_000_000
# Limit for a step of a followed topic: its messages and the rows held back by the previous step.
FOLLOWED_BYTES = 64_000_000
BRIEF = ("spark-local-brief.conf",)
TINY = (*BRIEF, "spark-local-tiny.conf")
# Suffixes of compressed files, and the assumed compression ratio.
PACKED = {".gz", ".zst", ".bz2", ".xz", ".lz4", ".parquet"}
UNPACKED_TIMES = 10


def settings_for(paths: Iterable[str]) -> tuple[str, ...]:
    """Return Spark's settings for the size of local files, folders and patterns; none without paths (a topic)."""
    given = list(paths)
    total = local_bytes(given, LITTLE_BYTES)
    if total is None or not given:
        return ()
    return TINY if total <= _TINY_BYTES else BRIEF


def is_small_and_local(paths: Iterable[str], most: int) -> bool:
    """Whether the paths are local and not empty, with at most `most` bytes of text in total."""
    given = list(paths)
    if not given or not all(is_local_path(path) and any(_files(_local(path))) for path in given):
        return False
    return local_bytes(given, most) is not None


def is_local_path(path: str) -> bool:
    """Whether the path is on the local file system."""
    # Hadoop's configuration may set another default file system.
    return "://" not in _local(path) and "HADOOP_CONF_DIR" not in os.environ


def local_bytes(paths: Iterable[str], most: int) -> int | None:
    """Return the bytes of text of local paths; None if they exceed `most`, or if a path is not local."""
    total = 0
    for path in paths:
        local = _local(path)
        if "://" in local:
            return None
        for file in _files(local):
            with suppress(FileNotFoundError):
                total += file.stat().st_size * (UNPACKED_TIMES if file.suffix in PACKED else 1)
            if total > most:
                return None
    return total


def _local(path: str) -> str:
    return path.removeprefix("file://")


def _files(path: str) -> Iterator[Path]:
    """Yield the files; some may be deleted at the same time."""
    for match in map(Path, glob.iglob(path, recursive=True)):
        if match.is_file():
            yield match
        yield from files_below(match)
