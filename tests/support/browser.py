"""A headless browser: the rendered page, and the messages of its console."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# No network access, no sandbox, and enough virtual time for scripts.
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=20000", "--enable-logging=stderr"),
)
_CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)")


@dataclass(frozen=True)
class RenderedPage:
    """A page after its scripts have run: the document, the console's lines, and a screenshot as PNG."""

    dom: str
    console: list[str]
    picture: bytes


def find_browser() -> str | None:
    """Return the browser in PURGATORY_BROWSER, or else the first one in PATH."""
    named = os.environ.get("PURGATORY_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def render(browser: str, page: Path, dark: bool, size: tuple[int, int] = (1160, 2400)) -> RenderedPage:
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    with tempfile.TemporaryDirectory() as scratch:
        window = f"--window-size={size[0]},{size[1]}"
        command = [browser, *_OPTIONS, scheme, window, f"--user-data-dir={scratch}/profile"]
        picture = Path(scratch, "page.png")
        dumped = _run([*command, "--dump-dom", f"--screenshot={picture}", page.as_uri()])
        return RenderedPage(dumped.stdout, _CONSOLE.findall(dumped.stderr), picture.read_bytes())


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
