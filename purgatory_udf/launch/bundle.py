"""The package as a zip for Spark's workers: the same bytes for the same sources, made again when they change."""

from __future__ import annotations

import hashlib
import os
import py_compile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

PACKAGES = ("purgatory_udf", "jobs")


def sources(root: Path) -> dict[str, bytes]:
    """The tree's packages, file by file."""
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }


def digest(files: Mapping[str, bytes]) -> str:
    """By which the same sources are known."""
    total = hashlib.sha256()
    for name, text in files.items():
        total.update(f"{name}\0{len(text)}\0".encode())
        total.update(text)
    return total.hexdigest()[:16]


def build(root: Path, folder: Path) -> Path:
    """The zip of the tree's packages in `folder`, named after its content."""
    files = sources(root)
    bundle = folder / f"purgatory-{digest(files)}.zip"
    if not bundle.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        draft = bundle.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(draft, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
                # A worker imports from the zip at every start, and would compile each time. Another Python
                # version ignores these and compiles the source.
                archive.writestr(zipfile.ZipInfo(f"{name}c"), _compiled(name, root / name), zipfile.ZIP_DEFLATED)
        draft.replace(bundle)
    return bundle


def _compiled(name: str, file: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        target = str(Path(folder, "compiled"))
        py_compile.compile(str(file), target, name, doraise=True, invalidation_mode=unchecked)
        return Path(target).read_bytes()
