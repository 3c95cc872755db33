"""Recordings of real Kafka in `tests/data`, and in a folder of the same layout that `PURGATORY_SHARED` names.

A test of *every* trace of a kind reads both folders; a test of a certain file reads `tests/data`. Files are named
without the suffix of their compression, which may be any that the product reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from purgatory_udf.sources.request_log.log_files import open_text

_DATA = Path(__file__).resolve().parents[1] / "data"
_COMPRESSIONS = ("", ".xz", ".gz", ".zst", ".bz2")


def data_file(*parts: str) -> Path:
    """Return a file or folder in `tests/data`."""
    return existing_path(_DATA.joinpath(*parts))


def existing_path(path: Path) -> Path:
    """Return the file or folder of that name, compressed or not. Fails the test if it is missing."""
    found = next(filter(Path.exists, (path.with_name(path.name + suffix) for suffix in _COMPRESSIONS)), None)
    if found is None:
        pytest.fail(f"{path} is missing, compressed or not")
    return found


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, compressed or not."""
    with open_text(existing_path(path)) as text:
        yield from text


def sections(path: Path) -> dict[str, list[str]]:
    """Return the lines of a file by section; a line `# NAME` starts a section."""
    by_name: dict[str, list[str]] = {}
    section: list[str] = []
    for line in lines(path):
        if line.startswith("# "):
            section = by_name[line[2:].rstrip("\n")] = []
        else:
            section.append(line.rstrip("\n"))
    return by_name


def find_all(*folder: str, ending: str = "") -> dict[str, Path]:
    """Return the entries of a folder with this ending, by their names without it.

    Entries of the second folder are named `more/NAME`.
    """
    paths = {}
    for prefix, root in _roots().items():
        inside = root.joinpath(*folder)
        for path in sorted(inside.iterdir()) if inside.is_dir() else ():
            name = path.name.removesuffix(path.suffix) if path.suffix in _COMPRESSIONS else path.name
            if name.endswith(ending):
                paths[prefix + name.removesuffix(ending)] = path.with_name(name)
    return paths


def _roots() -> dict[str, Path]:
    more = os.environ.get("PURGATORY_SHARED")
    if more and not Path(more).is_dir():
        pytest.fail(f"PURGATORY_SHARED={more}: no such folder")
    return {"": _DATA} | ({"more/": Path(more)} if more else {})


def import_recording(name: str, out: Path) -> None:
    """Import a recording of `traces` in this process, with its topics, leaders, in-sync sets and batches."""
    from purgatory_udf.backend.backend import LocalBackend
    from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
    from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log

    batches, metadata, topics = (
        str(data_file("traces", name, file)) for file in ("batches.csv", "cluster-metadata.txt", "topics.json")
    )
    logs = [str(path) for path in sorted(data_file("traces", name).glob("request-*"))]
    options = RequestLogOptions(logs, str(out), batches=batches, isr=metadata, topics=topics)
    ingest_request_log(LocalBackend(), options)
