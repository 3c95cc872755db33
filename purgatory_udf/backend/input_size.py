"""How much a job has to read; one that is soon over starts without what it would not live to profit by."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

# Bytes of text: up to so many a job is tiny, up to so many brief; these are settings of Spark's for such jobs.
_TINY_BYTES, LITTLE_BYTES = 2_000_000, 128_000_000
# Up to so many, one process, or as many as there are cores, does what there is to do in seconds, in its own memory:
# answer questions about tables; take in recorded events; replay events that are one batch.
ANSWERED_BYTES, IMPORTED_BYTES, REPLAYED_BYTES = 1_000_000_000, 512_000_000, 256_000_000
# What is done file by file, whatever their number.
ANY_BYTES = 1 << 62
# Of request logs, which take eight times as much memory as disk.
LOG_BYTES = 256_000_000
# Partitions of requests in a batch that one process replays: each takes a kilobyte of its memory.
REPLAYED_WATCHES = 1_000_000
# Of a log that is followed: what a step takes in, and what the step before has held back for it.
FOLLOWED_BYTES = 64_000_000
BRIEF = ("spark-local-brief.conf",)
TINY = (*BRIEF, "spark-local-tiny.conf")
# Files of these are so many times as long as they look.
PACKED = {".gz", ".zst", ".bz2", ".xz", ".lz4", ".parquet"}
UNPACKED_TIMES = 10


def settings_for(paths: Iterable[str]) -> tuple[str, ...]:
    """For what these files, folders and patterns of this machine hold. Who names none may read a topic."""
    given = list(paths)
    total = held(given, LITTLE_BYTES)
    if total is None or not given:
        return ()
    return TINY if total <= _TINY_BYTES else BRIEF


def is_near(paths: Iterable[str], most: int) -> bool:
    """Whether these are files, folders and patterns of this machine, each with something in it, and hold no more."""
    given = list(paths)
    if not given or not all(is_here(path) and any(_files(_local(path))) for path in given):
        return False
    return held(given, most) is not None


def is_here(path: str) -> bool:
    """Whether it names a place on this machine."""
    # With such a configuration, a path without a scheme is another file system's.
    return "://" not in _local(path) and "HADOOP_CONF_DIR" not in os.environ


def held(paths: Iterable[str], most: int) -> int | None:
    """How many bytes of text that is; None if there are more, or if it lies elsewhere, where nobody knows."""
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
    """Folders may be written to meanwhile, and files go."""
    for match in map(Path, glob.glob(path, recursive=True)):
        if match.is_file():
            yield match
        for folder, _, names in os.walk(match):
            yield from (Path(folder, name) for name in names)
