"""Output that a page shows in a `text` block has the table titles and column names of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs import pages

# Columns with the name of a figure or of the user's variant.
NAMED_BY_USERS = {"requests_per_s", "append_to_answer_p99_ms", "unchanged", "big"}
SHOWN = ["docs/recording.md", "docs/following.md", "docs/predicting.md", "docs/questions.md"]


@cache
def _literals() -> tuple[frozenset[str], str]:
    """Return the strings of the code, as a set and as one text."""
    literals = {
        node.value
        for file in (pages.ROOT / "purgatory_udf").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(literals), "\n".join(literals)


def _tables(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each table in a `text` block ("" if the page left it out), and its column names."""
    for block in pages.blocks(pages.text(page), "text"):
        title, is_body = "", False
        for line in block.splitlines():
            if line.startswith("  ") and not is_body:
                yield title, re.split(r"\s{2,}", line.strip())
            title, is_body = line, line.startswith("  ")


@pytest.mark.parametrize("page", SHOWN)
def test_tables_have_the_columns_of_the_code(page: str) -> None:
    columns = {column for _, names in _tables(page) for column in names} - NAMED_BY_USERS
    assert len(columns) > 5
    assert columns - _literals()[0] == set()


@pytest.mark.parametrize("page", SHOWN)
def test_tables_have_the_titles_of_the_code(page: str) -> None:
    # The title of a variant's table starts with the variant's name; numbers, with their unit, vary.
    titles = [title.removeprefix("patient") for title, _ in _tables(page)]
    parts = [part for title in titles for part in re.split(r"\d[\d,]*(?: seeds)?", title)]
    assert parts != []
    assert [part for part in parts if part not in _literals()[1]] == []


def test_top_and_prometheus_texts_equal_code() -> None:
    lines = "".join(pages.blocks(pages.text("docs/following.md"), "text")).splitlines()
    heads = [part for line in lines if line.startswith("Run ") for part in re.split(r"run-\w+|\d[\d,.:-]*|·", line)]
    helps = [line.split(" ", 3)[3] for line in lines if line.startswith("# HELP ")]
    assert (len(heads) > 5, len(helps)) == (True, 1)
    assert [text for text in (*heads, *helps) if text not in _literals()[1]] == []
