"""Prose is plain: few of the words in `WORDS`, and no long lines in Markdown.

Five kinds of text are counted, those of tests separately: docstrings, comments, messages (strings of at least four
words), Markdown and YAML comments. A word of the list can be right, so each kind has a bound instead of a ban.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs import pages

# Hits per 1,000 words. Well-kept projects have 0.3 to 2.1; on 2026-11-25 the product had at most 1.1, tests 1.4.
MOST_PER_1000 = {
    "docstrings": 1.5,
    "comments": 1.5,
    "messages": 1.5,
    "markdown": 1.5,
    "yaml comments": 1.5,
    "tests: docstrings": 2.0,
    "tests: comments": 2.0,
    "tests: messages": 2.0,
}

# A hyphen matches white space.
WORDS = [
    "anew", "beside", "besides", "whoever", "whatever", "whosoever", "nobody", "somebody", "whom", "whose", "told",
    "tells", "tell", "asks", "asked", "asking", "said", "says", "saying", "goes", "begun", "begins", "began", "ends",
    "alike", "apart", "thereof", "therefor", "lies", "lie", "lay", "laid", "hangs", "hung", "hang", "meanwhile",
    "likewise", "mostly", "merely", "hardly", "yets", "be-they", "so-many", "of-such", "such-a", "one-that",
    "those-that", "what-is", "what-was", "what-it", "what-they", "who-is", "who-has", "that-which", "as-they-are",
    "as-it-is", "goes-on", "go-on", "went-on", "comes-of", "came-of", "come-of", "it-is-over", "is-over",
    "turn-about", "in-turns", "takes-part", "is-there", "are-there", "is-none", "are-none", "it-be", "be-it",
    "if-any", "at-all", "by-itself", "of-its-own", "in-the-place-of", "has-it", "have-it", "lets-go", "let-go",
    "makes-of", "make-of", "knows-of", "know-of", "hear-of", "heard-of", "stands-for", "no-longer-than", "by-heart",
    "of-all", "all-of-them", "each-of-these",
]  # fmt: skip
_VAGUE = re.compile(r"\b(?:" + "|".join(WORDS).replace("-", r"\s+") + r")\b", re.IGNORECASE)
# Strings, in which `#` starts no comment, and comments. `tokenize` takes ten times as long.
_STRING_OR_COMMENT = re.compile(
    r"(?P<quotes>\"\"\"|'''|\"|')(?:\\.|[^\\])*?(?P=quotes)|(?P<comment>#[^\n]*)", re.DOTALL
)

_FILES = [
    *("*.md", "docs/**/*.md", "conf/**/*.md", "notebooks/*.md", "conf/**/*.yaml"),
    *("jobs/*.py", "purgatory_udf/**/*.py", "benchmarks/**/*.py", "tests/**/*.py"),
]

MOST_COLUMNS = 120


def _python_texts(source: str) -> Iterator[tuple[str, str]]:
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):  # A definition comes before its docstring.
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring and isinstance(node.body[0], ast.Expr):
                yield "docstrings", docstring
                docstrings.add(id(node.body[0].value))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.count(" ") >= 3
            and id(node) not in docstrings
        ):
            yield "messages", node.value
    for found in _STRING_OR_COMMENT.finditer(source):
        if found["comment"]:
            yield "comments", found["comment"].lstrip("# ")


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of every piece of prose in a file."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield "markdown", re.sub(r"```.*?```", " ", source, flags=re.DOTALL)
    elif file.suffix == ".yaml":
        yield "yaml comments", "\n".join(line.split("#", 1)[1] for line in source.splitlines() if "#" in line)
    else:
        yield from _python_texts(source)


@cache
def _counts() -> tuple[Counter[str], Counter[str], dict[str, Counter[str]]]:
    """Return words per kind, hits per kind, and the hits of each kind per file and word."""
    words: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    places: dict[str, Counter[str]] = {}
    for file in (file for pattern in _FILES for file in pages.ROOT.glob(pattern)):
        name = str(file.relative_to(pages.ROOT))
        area = "tests: " if name.startswith("tests/") else ""
        for kind, text in _texts(file):
            kind = area + kind
            # "`error` is None" speaks of a value.
            text = re.sub(r"\bN(one|ONE)\b", "null", text)
            words[kind] += len(text.split())
            for found in _VAGUE.findall(text):
                hits[kind] += 1
                places.setdefault(kind, Counter())[f"{name}: {' '.join(found.lower().split())}"] += 1
    return words, hits, places


@pytest.mark.parametrize("kind", MOST_PER_1000)
def test_text_has_few_vague_words(kind: str) -> None:
    words, hits, places = _counts()
    rate = 1000 * hits[kind] / words[kind]
    assert rate <= MOST_PER_1000[kind], places[kind].most_common(30)


def test_every_kind_has_bound() -> None:
    assert set(_counts()[0]) == set(MOST_PER_1000)


def _long_lines(page: str) -> list[int]:
    """Return the numbers of the lines that are too long, outside tables and code blocks."""
    code, found = False, []
    for number, line in enumerate(pages.text(page).splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif not code and not line.startswith("|") and len(line) > MOST_COLUMNS:
            found.append(number)
    return found


@pytest.mark.parametrize("page", pages.NAMES)
def test_markdown_lines_are_short(page: str) -> None:
    assert _long_lines(page) == []
