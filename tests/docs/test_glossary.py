"""docs/glossary.md explains words that the code uses, each once in its place."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs import pages

TABLES = list(pages.tables(pages.text("docs/glossary.md")))
WORDS = [row["word"] for table in TABLES for row in table.rows]
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for folder in ("purgatory_udf", "tests")
    for path in (pages.ROOT / folder).rglob("*.py")
    if path != Path(__file__)
)


def test_every_word_is_one_of_the_code() -> None:
    assert len(WORDS) > 25
    assert [word for word in WORDS if not _used(word)] == []


def test_no_word_is_explained_twice_in_one_place() -> None:
    assert [table.headings for table in TABLES if len({row["word"] for row in table.rows}) != len(table.rows)] == []


def _used(word: str) -> bool:
    """Perhaps as part of a name, or broken by a line."""
    return re.search(r"(?<![a-z])" + word.replace(" ", r"[\s_-]+"), CODE, re.IGNORECASE) is not None
