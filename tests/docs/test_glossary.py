"""docs/glossary.md explains words that the code uses, each once per table."""

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


def test_words_occur_in_code() -> None:
    assert len(WORDS) > 25
    assert [word for word in WORDS if not _used(word)] == []


def test_words_are_explained_once_per_table() -> None:
    assert [table.headings for table in TABLES if len({row["word"] for row in table.rows}) != len(table.rows)] == []


def _used(word: str) -> bool:
    """Return whether the code has the word, also as part of a name or across a line break."""
    return re.search(r"(?<![a-z])" + word.replace(" ", r"[\s_-]+"), CODE, re.IGNORECASE) is not None
