"""The report as one HTML file that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from purgatory_udf.printing import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0 2rem; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; }
"""


def page(title: str, tables: Iterable[Table], picture: str) -> str:
    """`picture` is SVG, put after the tables."""
    parts = [_table(table) for table in tables if table.rows]
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{''.join(parts)}"
        f"<h2>Recorded against replayed waits</h2>\n{picture}\n</html>\n"
    )


def _table(table: Table) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    return f"<table><caption>{escape(table.title)}</caption>\n<tr>{heads}</tr>\n{rows}</table>\n"


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "<td>–</td>"
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{value:,}</td>'
