"""A file that is there as a whole: whoever reads it while it is written, and whatever ends who writes it, sees all of
what was there before, or all of this."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, text: str, for_all: bool = False) -> None:
    """In place of what is there, with its folder; `for_all` to read, whatever this user's files are otherwise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    place = file.resolve()
    if place.exists() and not place.is_file():
        # A terminal or a pipe, in whose place nothing may be put.
        place.write_text(text, encoding="utf-8")
        return
    # Hidden, and of another suffix: a collector takes every file that ends in .prom.
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if for_all:
            beside.chmod(0o644)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
