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
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[name]) for name in ("src", "href") if name in given]
        if tag == "figure":
            self.figures.append(str(given["id"]))
        self._in_specs = tag == "script" and given.get("id") == "pictures"

    def handle_data(self, data: str) -> None:
        if self._in_specs:
            self.specs = json.loads(data)
            self._in_specs = False
        self.texts.append(data)


def marks(spec: dict[str, Any]) -> int:
    """Return the number of marks that Vega draws for a chart."""
    svg = vl_convert.vegalite_to_svg(json.dumps(spec), vl_version="6.4")
    return svg.count('role="graphics-symbol"')
