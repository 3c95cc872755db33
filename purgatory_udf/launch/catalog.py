"""The jobs there are, read off the files of `jobs/` without importing any."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from pathlib import Path

from purgatory_udf.errors import UserError


@dataclass(frozen=True)
class Entry:
    """A job's name on the command line, its file, and the first line of what it says of itself."""

    name: str
    file: Path
    summary: str


def jobs(root: Path) -> list[Entry]:
    """Every job of the tree, by name."""
    files = (file for file in sorted((root / "jobs").glob("*.py")) if not file.name.startswith("_"))
    return [Entry(name_of(file), file, _summary(file)) for file in files]


def name_of(file: Path) -> str:
    """A job's name on the command line. No file is called as a module of Python's own: it would stand in for that
    wherever a job is started as a script, as Spark does it; so one has an underscore behind its name."""
    return file.stem.rstrip("_").replace("_", "-")


def find(root: Path, name: str) -> Entry:
    """The job of that name; a UserError names the nearest one if there is none."""
    known = {entry.name: entry for entry in jobs(root)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise UserError(f"{name}: unknown job ({hint})")


def _summary(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    said = (ast.get_docstring(mains[0]) if mains else None) or ast.get_docstring(tree) or ""
    return said.split("\n")[0].rstrip(".")
