"""The commands of README.md's tour and of the tutorial print the shown output. `…` replaces omitted lines."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.docs import pages

pytestmark = pytest.mark.long

OUT = "/tmp/tour"
JOBS = {
    "README.md": ["ingest", "replay", "diagnose", "explain", "metrics"],
    "docs/tutorial.md": ["ingest", "replay", "diagnose", "explain", "what-if", "fidelity"],
}
# What differs between runs: the run's name and its duration.
_VARIES = re.compile(r"\brun-[0-9a-f]{12}\b| in [0-9.]+ s$")


def _lines(text: str) -> list[str]:
    return [_VARIES.sub("*", line.rstrip()) for line in text.splitlines()]


def _run(command: str, out: Path) -> list[str]:
    """Return what the command prints, with `OUT` as its output folder."""
    words = [word.replace(OUT, str(out)) for word in shlex.split(command)]
    done = subprocess.run(words, cwd=pages.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return _lines(done.stdout.replace(str(out), OUT))


def _missing(shown: list[str], printed: list[str]) -> list[str]:
    """Return the lines that are not printed, or not in this order."""
    rest = iter(printed)
    return [line for line in shown if line != "…" and line not in rest]


@pytest.mark.parametrize("page", ["README.md", pytest.param("docs/tutorial.md", marks=pytest.mark.nightly)])
def test_page_prints_what_is_shown(page: str, tmp_path: Path) -> None:
    steps = re.findall(r"```bash\n([^\n]*)\n```\n\n```text\n(.*?)```", pages.text(page), re.DOTALL)
    assert [shlex.split(command)[1] for command, _ in steps] == JOBS[page]
    for command, shown in steps:
        printed = _run(command, tmp_path / "tour")
        assert _missing(_lines(shown), printed) == [], "\n".join(printed)
