"""Memory between calls."""

from __future__ import annotations

import subprocess
import sys

_PAGES_OF_A_TABLE = 1 << 12
_TWICE = f"""
import resource
import numpy as np
from purgatory_udf.loop.memory import keep_freed

def fresh_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    # Too small for the pages of two megabytes that numpy asks for.
    tables = [np.ones({_PAGES_OF_A_TABLE} * 64) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed()
first = fresh_pages()
print(first, max(fresh_pages() for _ in range(5)))
"""


def test_what_a_call_lets_go_is_there_for_the_next_one() -> None:
    process = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, check=True)
    first, later = map(int, process.stdout.split())
    assert first > _PAGES_OF_A_TABLE / 2
    assert later < first / 10
