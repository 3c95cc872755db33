"""Names and imports: a public class name is unique, and modules have no import cycles."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.docs import pages

FILES = sorted(file for folder in ("purgatory_udf", "jobs") for file in (pages.ROOT / folder).rglob("*.py"))


def _module(file: Path) -> str:
    return ".".join(file.relative_to(pages.ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_module(file): file for file in FILES}


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _imports(file: Path) -> set[str]:
    """Return the modules of this project that a file imports anywhere."""
    modules = set()
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                modules.add(module if module in MODULES else node.module)
    return modules & MODULES.keys()


def test_public_class_names_are_unique() -> None:
    places = defaultdict(list)
    for file in FILES:
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_module(file))
    assert len(places) > 300
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_modules_have_no_import_cycles() -> None:
    order = list(TopologicalSorter({module: _imports(file) for module, file in MODULES.items()}).static_order())
    assert sorted(order) == sorted(MODULES)
