"""What real Kafka did, recorded: `tests/data`, and whatever folder of the same layout `PURGATORY_SHARED` names.

A test that reads *every* trace of a kind reads those of both; one that reads a certain file reads the tree's. Files go
by their names before they were packed, and may be packed in any way that the product reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory_udf.sources.request_log.lines.log_files import open_text

_IN_THE_TREE = Path(__file__).resolve().parents[1] / "data"
_PACKINGS = ("", ".xz", ".gz", ".zst", ".bz2")


def data_file(*parts: str) -> Path:
    """One of the tree's files or folders."""
    return existing_path(_IN_THE_TREE.joinpath(*parts))


def existing_path(path: Path) -> Path:
    """The file or folder of that name, however it is packed; a test that needs it fails, with its name, without it."""
    place = next(filter(Path.exists, (path.with_name(path.name + packing) for packing in _PACKINGS)), None)
    if place is None:
        pytest.fail(f"{path} is missing, packed or not")
    return place


def lines(path: Path) -> Iterator[str]:
    with open_text(existing_path(path)) as text:
        yield from text


def find_all(*folder: str, ending: str = "") -> dict[str, Path]:
    """What lies in that folder, here and there, with that ending to its name, by its name without that ending. What is
    not the tree's is called `more/NAME`."""
    paths = {}
    for mark, root in _roots().items():
        inside = root.joinpath(*folder)
        for path in sorted(inside.iterdir()) if inside.is_dir() else ():
            name = path.name.removesuffix(path.suffix) if path.suffix in _PACKINGS else path.name
            if name.endswith(ending):
                paths[mark + name.removesuffix(ending)] = path.with_name(name)
    return paths


def _roots() -> dict[str, Path]:
    more = os.environ.get("PURGATORY_SHARED")
    if more and not Path(more).is_dir():
        pytest.fail(f"PURGATORY_SHARED={more}: no such folder")
    return {"": _IN_THE_TREE} | ({"more/": Path(more)} if more else {})
