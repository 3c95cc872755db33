"""Column functions that the code uses exist without Spark, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from purgatory_udf.backend.local import functions

PACKAGE = Path(functions.__file__).parents[2]
IMPORT = "from purgatory_udf.backend.dialect import functions as sf"


def _used_functions(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sf":
            yield node.attr


def test_used_functions_exist() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if IMPORT in file.read_text(encoding="utf-8").splitlines()]
    used = {name for file in files for name in _used_functions(file)}
    assert used
    assert not {name for name in used if not hasattr(functions, name)}
