"""The common template of the HTML pages. A page is one self-contained file, which needs no network.

Names come from traces and are untrusted: they are escaped everywhere, and are never markup or script.

The JavaScript that draws the charts is Vega, Vega-Lite and vega-embed as one script. Bundling takes about a second, so
the script is cached in the user's cache folder, in one file for each version of vl-convert and Vega-Lite. The first
line of the file is the SHA-256 of the rest; a damaged file is replaced. Without a writable folder, each process bundles
the script for itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from purgatory_udf.backend.file_system import replace_file
from purgatory_udf.common.console import Cell, Table
from purgatory_udf.common.installation import user_cache_folder

# The style sheet and the script have colours for light and for dark mode.
STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --ink: #1c2026; --soft: #5b6470; --line: #d7dbe0;
  --warn: #b3430c; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171b; --card: #1d2127; --ink: #e6e9ed; --soft: #a3adb8; --line: #363d46; --warn: #ff9a66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 24px 20px 60px; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 36px 0 4px; } p { margin: 4px 0 12px; }
.soft, figcaption { color: var(--soft); } .expired { color: var(--warn); font-weight: 600; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; }
.facts b { display: block; font-size: 22px; }
figure { margin: 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; }
td.number, th.number { text-align: right; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; margin: 6px 0;
  padding: 6px 12px; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { margin: 8px 0 4px; font: 13px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 960px) { table { font-size: 12px; } th, td { padding: 3px 6px 3px 0; } }
"""

# Draws every chart into the figure with its name, and again when the browser switches between light and dark mode.
SCRIPT = """
const specs = JSON.parse(document.getElementById("pictures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
function theme() {
  const style = getComputedStyle(document.documentElement);
  const [ink, soft, line] = ["--ink", "--soft", "--line"].map(name => style.getPropertyValue(name).trim());
  const text = { labelColor: soft, titleColor: soft, labelFontSize: 12, titleFontSize: 12 };
  return { background: "transparent", font: "system-ui, sans-serif", view: { stroke: line },
    axis: { ...text, gridColor: line, domainColor: line, tickColor: line, gridOpacity: 0.6 },
    legend: text, header: { ...text, labelColor: ink, labelFontSize: 13, labelFontWeight: "bold" },
    title: { color: ink } };
}
async function draw() {
  const config = theme();
  for (const [name, spec] of Object.entries(specs))
    await vegaEmbed("#" + name, { ...spec, config }, { actions: false, renderer: "svg", mode: "vega-lite",
      tooltip: { theme: dark.matches ? "dark" : "light" } });
  document.body.dataset.drawn = Object.keys(specs).length;
}
function unfold() {
  const entry = document.getElementById(location.hash.slice(1));
  if (entry) { entry.open = true; entry.scrollIntoView(); }
}
dark.addEventListener("change", draw);
addEventListener("hashchange", unfold);
draw().then(unfold);
"""


# The browser loads nothing from outside the file. Vega compiles its expressions, which needs `unsafe-eval`.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data:"
# For a page without scripts.
POLICY_TAG = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    'img-src data:">'
)


@dataclass(frozen=True)
class Section:
    """A section of a page: a heading, a sentence as caption, and a body, which is markup from the functions below."""

    title: str
    caption: str
    body: str


def page(title: str, caption: str, top: str, sections: Iterable[Section], specs: dict[str, dict[str, Any]]) -> str:
    """Return the HTML of a whole page.

    Args:
        title: Title of the page, as text.
        caption: Sentence below the title, as text; may be empty.
        top: Markup above the sections.
        sections: Sections in the order of the page.
        specs: Vega-Lite specification of each chart, by the name of its figure.
    """
    parts = "\n".join(map(_section, sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{_soft(caption)}
<noscript><p class=expired>The charts need JavaScript, which this browser does not run.</p></noscript>
{top}
{parts}
<script type="application/json" id="pictures">{_data(specs)}</script>
<script>{vega_bundle()}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    caption = _soft(section.caption)
    return f"<section><h2>{escape(section.title)}</h2>\n{caption}\n{section.body}</section>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the markup of a row of large numbers; `pairs` are texts of number and description."""
    cards = "".join(f"<div><b>{escape(number)}</b>{escape(what)}</div>" for number, what in pairs)
    return f"<div class=facts>{cards}</div>"


def sentences(texts: Iterable[str], note: str = "") -> str:
    """Return the markup of one paragraph for each text, and of one in a softer colour for the note."""
    return "\n".join([*(f"<p>{escape(text)}</p>" for text in texts), _soft(note)])


def _soft(text: str) -> str:
    return f"<p class=soft>{escape(text)}</p>" if text else ""


def warning(text: str) -> str:
    """Return the markup of a highlighted sentence."""
    return f"<p class=expired>{escape(text)}</p>"


def figure(name: str) -> str:
    """Return the element into which the chart of that name is drawn."""
    return f"<figure id={name}></figure>"


def table(data: Table) -> str:
    """Return the table as HTML; columns of numbers are right-aligned."""
    numeric = [all(_is_number(row[at]) for row in data.rows) for at in range(len(data.columns))]
    head = "".join(_cell("th", text, number) for text, number in zip(data.columns, numeric, strict=True))
    rows = "".join(
        f"<tr>{''.join(_cell('td', value, number) for value, number in zip(row, numeric, strict=True))}</tr>\n"
        for row in data.rows
    )
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"


def stories(entries: Sequence[tuple[str, Sequence[str], bool]], anchor: str = "") -> str:
    """Return the markup of entries that unfold on a click.

    Each entry has a title, lines of text, and whether to highlight it, as for expired operations. With an `anchor`, the
    link `#anchor-1` leads to the first entry and unfolds it.
    """
    lines = []
    for number, (title, texts, expired) in enumerate(entries, 1):
        opened = f"<details id={anchor}-{number}>" if anchor else "<details>"
        summary = f"<summary{' class=expired' if expired else ''}>{escape(title)}</summary>"
        lines.append(f"{opened}{summary}<pre>{escape(chr(10).join(texts))}</pre></details>")
    return "\n".join(lines)


def _is_number(value: Cell) -> bool:
    """Return whether to align a cell as a number. Differences are numbers too, although they are text with a sign."""
    return not isinstance(value, str) or value[:1] in ("+", "-")


def _cell(tag: str, value: Cell, number: bool) -> str:
    text = "–" if value is None else value if isinstance(value, str) else f"{value:,}"
    return f"<{tag}{' class=number' if number else ''}>{escape(text)}</{tag}>"


def _data(specs: dict[str, dict[str, Any]]) -> str:
    """Return the specifications as JSON that cannot end the `script` element around it."""
    return json.dumps(specs, separators=(",", ":")).replace("<", "\\u003c")


_SNIPPET = "window.vegaEmbed = vegaEmbed;"


@cache
def vega_bundle() -> str:
    """Return the script, from the cache if possible. It defines `vegaEmbed` and can be put into a `script` element."""
    import altair as alt
    import vl_convert

    vega_lite = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    file = user_cache_folder() / f"vega-lite-{vega_lite}-vl-convert-{version('vl-convert-python')}.js"
    script = _read(file)
    if script is None:
        script = vl_convert.javascript_bundle(_SNIPPET, vega_lite)
        with suppress(OSError):
            replace_file(file, f"{_digest(script)}\n{script}")
    # An end tag would end the element, also within a string of the script.
    return script.replace("</script", "<\\/script")


def _read(file: Path) -> str | None:
    """Return the cached script in a file, or None if the file cannot be read or its checksum is wrong."""
    try:
        digest, _, script = file.read_bytes().decode().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return script if digest == _digest(script) else None


def _digest(script: str) -> str:
    """Return the SHA-256 of a script and of the snippet from which it was bundled, as hexadecimal digits."""
    return hashlib.sha256(f"{_SNIPPET}\n{script}".encode()).hexdigest()
