"""The options `--json` and `--compare` of benchmarks: save figures, and print them next to those of another run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Figures by name; a value may be a mapping of figures itself.
Figures = dict[str, Any]


def add_options(options: argparse.ArgumentParser) -> None:
    """Add `--json` and `--compare`."""
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    options.add_argument(
        "--compare", type=Path, metavar="SAVED", help="also print the ratios of an earlier --json file"
    )


def finish(figures: Figures, given: argparse.Namespace, compared: Sequence[str] = ("ratio",)) -> None:
    """Print the figures with one of the names `compared` next to the earlier ones, and write all to the file."""
    if given.compare:
        before = dict(_numbers(json.loads(given.compare.read_text(encoding="utf-8")), compared))
        for name, number in _numbers(figures, compared):
            if name not in before:
                print(f"{name}: {number:.3g}, not measured before")
            elif before[name]:
                print(f"{name}: {number:.3g}, before {before[name]:.3g}: x {number / before[name]:.2f}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _numbers(figures: Mapping[str, Any], compared: Sequence[str], above: str = "") -> Iterator[tuple[str, float]]:
    """Yield name and value of the numbers with these names, at any depth."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _numbers(value, compared, f"{above}{name}, ")
        elif name in compared and isinstance(value, int | float):
            yield (f"{above}{name}" if len(compared) > 1 else above.removesuffix(", ") or name), float(value)
