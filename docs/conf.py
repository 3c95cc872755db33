"""The settings of the documentation site, which `.ci/docs` builds with Sphinx from the pages in this folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "Purgatory Replay"
html_title = project
html_theme = "furo"
html_show_copyright = False
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
exclude_patterns = ["traces"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
# Blocks of Python that show values, such as Row(…), are not complete programs.
suppress_warnings = ["misc.highlighting_failure"]

_FOLDER_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)\)")


def write_commands(_: Any) -> None:
    """Write the page of all jobs from their `--help`."""
    from purgatory_udf.launch import command_line

    page = ["# Commands\n", "The output of `./spark-submit.sh --help`, and of each job's `--help`.\n"]
    for name in ("", *(job.name for job in command_line.list_jobs(ROOT))):
        command = [str(ROOT / "spark-submit.sh"), *([name] if name else []), "--help"]
        environ = os.environ | {"COLUMNS": "100"}
        shown = subprocess.run(command, check=True, capture_output=True, text=True, env=environ)
        if name:
            page.append(f"## {name}\n")
        page.append(f"```text\n{shown.stdout.rstrip()}\n```\n")
    generated = Path(__file__).parent / "_generated"
    generated.mkdir(exist_ok=True)
    (generated / "commands.md").write_text("\n".join(page), encoding="utf-8")


def unlink_folders(_: Any, name: str, source: list[str]) -> None:
    """Replace links to folders of the repository, which have no page, by their names."""

    def replaced(link: re.Match[str]) -> str:
        target = (Path(__file__).parent / name).parent / link[2]
        return f"{link[1]} (`{target.resolve().relative_to(ROOT)}`)" if target.is_dir() else link[0]

    source[0] = _FOLDER_LINK.sub(replaced, source[0])


def setup(app: Any) -> None:
    """Register the hooks of this file."""
    app.connect("builder-inited", write_commands)
    app.connect("source-read", unlink_folders)
