"""How much a job has to read; one that is soon over starts without what it would not live to profit by."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

# Bytes of text: up to so many a job is tiny, up to so many brief; these are settings of Spark's for such jobs.
_TINY_BYTES, LITTLE_BYTES = 2_000_000, 128_000_000
BRIEF = ("spark-local-brief.conf",)
TINY = (*BRIEF, "spark-local-tiny.conf")
# Files of these are so many times as long as they look.
PACKED = {".gz", ".zst", ".bz2", ".xz", ".lz4", ".parquet"}
UNPACKED_TIMES = 10


def settings_for(paths: Iterable[str]) -> tuple[str, ...]:
    """For what these files, folders and patterns of this machine hold. Of what lies elsewhere nobody knows how much it
    is."""
    total = 0
    for path in paths:
        local = path.removeprefix("file://")
        if "://" in local:
            return ()
        for file in _files(local):
            total += file.stat().st_size * (UNPACKED_TIMES if file.suffix in PACKED else 1)
            if total > LITTLE_BYTES:
                return ()
    return TINY if total <= _TINY_BYTES else BRIEF


def _files(path: str) -> Iterator[Path]:
    for found in map(Path, glob.glob(path, recursive=True)):
        if found.is_dir():
            yield from (file for file in found.rglob("*") if file.is_file())
        elif found.is_file():
            yield found
