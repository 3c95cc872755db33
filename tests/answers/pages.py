"""A parser of HTML pages: loaded addresses, chart specifications, texts."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import vl_convert


class Page(HTMLParser):
    """A parsed page. `loads` has the address of every element, `figures` the ids of elements for charts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.figures: list[str] = []
        self.texts: list[str] = []
        self.specs: dict[str, dict[str, Any]] = {}
        self._in_specs = False
        self._tables: dict[str, list[list[str]]] = {}
        self._tag = self._title = ""
        self.feed(html)

    def table(self, title: str) -> list[dict[str, str]]:
        """Return the rows of the table below a heading, as texts by column."""
        columns, *rows = self._tables[title]
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[name]) for name in ("src", "href") if name in given]
        if tag == "figure":
            self.figures.append(str(given["id"]))
        self._in_specs = tag == "script" and given.get("id") == "pictures"
        self._tag = tag
        if tag == "tr":
            self._tables.setdefault(self._title, []).append([])
        elif tag in ("th", "td"):
            self._tables[self._title][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._in_specs:
            self.specs = json.loads(data)
            self._in_specs = False
        if self._tag == "h2":
            self._title = data
        elif self._tag in ("th", "td"):
            self._tables[self._title][-1][-1] += data
        self.texts.append(data)


def marks(spec: dict[str, Any]) -> int:
    """Return the number of marks that Vega draws for a chart."""
    svg = vl_convert.vegalite_to_svg(json.dumps(spec), vl_version="6.4")
    return svg.count('role="graphics-symbol"')
