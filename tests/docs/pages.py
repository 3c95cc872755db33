"""The Markdown pages of the repository, parsed: code blocks, inline code, tables and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "conf/*/*.md", "notebooks/*.md", "benchmarks/*.md", "tests/**/*.md")
    for page in ROOT.glob(pattern)
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def text(name: str) -> str:
    """Return the text of a page, by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def words_in_code(page: str) -> set[str]:
    """Return the inline code, without blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)))


@dataclass(frozen=True)
class Table:
    """A table, and the headings above it, the nearest last."""

    headings: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]


def tables(page: str) -> Iterator[Table]:
    """Yield the tables of a page."""
    headings: list[str] = []
    lines = iter([*page.splitlines(), ""])
    for line in lines:
        heading = re.match(r"(#+) (.*)", line)
        if heading:
            del headings[len(heading[1]) - 1 :]
            headings.append(heading[2])
        elif line.startswith("|"):
            columns = _cells(line)
            next(lines)
            rows = []
            while (line := next(lines)).startswith("|"):
                rows.append(dict(zip(columns, _cells(line), strict=True)))
            yield Table(tuple(headings), columns, tuple(rows))


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
