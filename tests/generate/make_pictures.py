"""Creates docs/report.png, a screenshot of the report of the demo's trace.

python -m tests.generate.make_pictures
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import browser

ROOT = Path(__file__).resolve().parents[2]
# Size of the screenshot in pixels.
WIDTH, HEIGHT = 1160, 1310


def main() -> None:
    executable = browser.find_browser()
    if executable is None:
        sys.exit(f"no browser found: install one of {', '.join(browser.NAMES)}, or set PURGATORY_BROWSER")
    with tempfile.TemporaryDirectory() as out:
        _job("ingest", "--from", "jsonl", "conf/sample/trace.jsonl", "--out", out)
        _job("replay", "--events", f"{out}/events", "--out", out, "--run-id", "sample")
        _job("report", "--out", out)
        seen = browser.render(executable, Path(out, "report.html"), dark=False, size=(WIDTH, HEIGHT))
        (ROOT / "docs" / "report.png").write_bytes(seen.picture)


def _job(*words: str) -> None:
    subprocess.run([str(ROOT / "spark-submit.sh"), *words], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
