"""Whether a job has so little to read that it is over before a JVM's costlier compilers pay."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

# Bytes of text; half a minute of a busy broker's request log, or some hundred thousand events.
LITTLE = 64_000_000
# Files of these are so many times as long as they look.
PACKED = {".gz", ".zst", ".bz2", ".xz", ".lz4", ".parquet"}
UNPACKED_TIMES = 10


def is_little(paths: Iterable[str]) -> bool:
    """Files, folders and patterns of this machine. Of what lies elsewhere nobody knows how much it is."""
    total = 0
    for path in paths:
        local = path.removeprefix("file://")
        if "://" in local:
            return False
        for file in _files(local):
            total += file.stat().st_size * (UNPACKED_TIMES if file.suffix in PACKED else 1)
            if total > LITTLE:
                return False
    return True


def _files(path: str) -> Iterator[Path]:
    for found in map(Path, glob.glob(path, recursive=True)):
        if found.is_dir():
            yield from (file for file in found.rglob("*") if file.is_file())
        elif found.is_file():
            yield found
