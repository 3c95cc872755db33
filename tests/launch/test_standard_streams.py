"""A job writes to the streams that were offered, not into Spark's pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from purgatory_udf.launch import standard_streams

ROOT = Path(__file__).resolve().parents[2]

# Like spark-submit: runs a Python process with both streams in one pipe, and copies that to stdout.
JVM = """
import os, subprocess, sys
from purgatory_udf.launch import standard_streams
if sys.argv[1] == "offers":
    standard_streams.offer_streams(os.environ)
print("the JVM starts", file=sys.stderr, flush=True)
job = '''
import sys
from purgatory_udf.launch import standard_streams
standard_streams.take_streams()
print("a result")
print("an error", file=sys.stderr)
'''
below = subprocess.run([sys.executable, "-c", job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
sys.stdout.buffer.write(below.stdout)
sys.stdout.flush()
print("the JVM exits", file=sys.stderr)
"""


def _run(folder: Path, how: str) -> tuple[str, str]:
    out, err = folder / "out", folder / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", JVM, how], env=environ, stdout=stdout, stderr=stderr, check=True)
    return out.read_text(), err.read_text()


def test_offered_streams_are_separate(tmp_path: Path) -> None:
    assert _run(tmp_path, "offers") == ("a result\n", "the JVM starts\nan error\nthe JVM exits\n")


def test_without_offer_streams_are_joined(tmp_path: Path) -> None:
    out, err = _run(tmp_path, "does not")
    assert sorted(out.splitlines()) == ["a result", "an error"]
    assert err == "the JVM starts\nthe JVM exits\n"


def test_offer_of_another_process_is_ignored() -> None:
    before = os.fstat(1)
    standard_streams.take_streams({standard_streams.OFFER_VARIABLE: str(os.getpid())})
    assert os.path.samestat(os.fstat(1), before)
