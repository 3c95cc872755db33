"""A job writes where the process that offered its streams writes, not into the pipe that Spark gave it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from purgatory_udf.launch import standard_streams

ROOT = Path(__file__).resolve().parents[2]

# As spark-submit does: a Python below with both streams in one pipe, which is copied to stdout.
JVM = """
import os, subprocess, sys
from purgatory_udf.launch import standard_streams
if sys.argv[1] == "offers":
    standard_streams.offer(os.environ)
print("the JVM begins", file=sys.stderr, flush=True)
job = '''
import sys
from purgatory_udf.launch import standard_streams
standard_streams.take()
print("a result")
print("an error", file=sys.stderr)
'''
below = subprocess.run([sys.executable, "-c", job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
sys.stdout.buffer.write(below.stdout)
sys.stdout.flush()
print("the JVM ends", file=sys.stderr)
"""


def _run(folder: Path, how: str) -> tuple[str, str]:
    out, err = folder / "out", folder / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", JVM, how], env=environ, stdout=stdout, stderr=stderr, check=True)
    return out.read_text(), err.read_text()


def test_results_and_errors_part_where_they_are_offered(tmp_path: Path) -> None:
    assert _run(tmp_path, "offers") == ("a result\n", "the JVM begins\nan error\nthe JVM ends\n")


def test_without_an_offer_all_stays_as_it_is(tmp_path: Path) -> None:
    out, err = _run(tmp_path, "does not")
    assert sorted(out.splitlines()) == ["a result", "an error"]
    assert err == "the JVM begins\nthe JVM ends\n"


def test_an_offer_of_somebody_else_is_not_taken() -> None:
    before = os.fstat(1)
    standard_streams.take({standard_streams.OFFERED: str(os.getpid())})
    assert os.path.samestat(os.fstat(1), before)
