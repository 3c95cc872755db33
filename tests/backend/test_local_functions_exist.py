"""Whatever function of columns is asked for in code that runs without Spark, too, is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from purgatory_udf.backend.local import functions

PACKAGE = Path(functions.__file__).parents[2]
ASKED = "from purgatory_udf.backend.dialect import functions as sf"
# For the reasons why events are refused that are late or repeat a number: what that is, Spark decides.
SPARKS = {"format_string"}


def _asked_for(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sf":
            yield node.attr


def test_every_function_that_is_asked_for_is_there() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if ASKED in file.read_text(encoding="utf-8").splitlines()]
    asked = {name for file in files for name in _asked_for(file)}
    assert len(asked) > 50
    assert {name for name in asked if not hasattr(functions, name)} == SPARKS
