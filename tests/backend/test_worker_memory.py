"""Memory that processes retain and release, and objects that workers exclude from garbage collection."""

from __future__ import annotations

import subprocess
import sys

_PAGES_OF_A_TABLE = 1 << 12
_TWICE = f"""
import resource
import numpy as np
from purgatory_udf.backend.spark_workers import retain_freed_memory

def fresh_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    # Small enough that numpy requests no huge pages.
    tables = [np.ones({_PAGES_OF_A_TABLE} * 64) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

retain_freed_memory()
first = fresh_pages()
print(first, max(fresh_pages() for _ in range(5)))
"""


def test_freed_memory_is_reused() -> None:
    process = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, check=True)
    first, later = map(int, process.stdout.split())
    assert first > _PAGES_OF_A_TABLE / 2
    assert later < first / 10


_RELEASED = """
from pathlib import Path
from purgatory_udf.backend.process_pool import release_free_memory

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

before = megabytes()
# Small enough that malloc places them in the heap, whose last part stays in use.
parts = [bytearray(100_000) for _ in range(1000)]
del parts[:-1]
kept = megabytes()
release_free_memory()
print(kept - before, megabytes() - before)
"""


def test_freed_memory_is_released() -> None:
    process = subprocess.run([sys.executable, "-c", _RELEASED], capture_output=True, text=True, check=True)
    kept, released = map(int, process.stdout.split())
    assert kept > 80
    assert released < 10


_LOADED = """
import gc
import pyarrow
from purgatory_udf.backend.spark_workers import freeze_loaded_objects

class Ring:
    def __init__(self):
        self.ring = self

gc.disable()
freeze_loaded_objects()
loaded = gc.get_freeze_count()
Ring()
freeze_loaded_objects()
print(loaded, gc.get_freeze_count(), gc.collect())
import wave
freeze_loaded_objects()
print(gc.get_freeze_count())
"""


def test_only_new_modules_freeze_objects() -> None:
    process = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    loaded, still, unreached, more = map(int, process.stdout.split())
    assert loaded == still > 10_000
    assert unreached >= 1
    assert more > loaded


_CALLED = """
import gc, os
from purgatory_udf.backend.spark_workers import freeze_in_workers

work = freeze_in_workers(lambda rows: iter(rows))
print(list(work([1, 2])), gc.get_freeze_count(), flush=True)
if os.fork() == 0:
    print(list(work([3])), gc.get_freeze_count() > 0, flush=True)
    os._exit(0)
os.wait()
"""


def test_only_worker_processes_freeze_objects() -> None:
    process = subprocess.run([sys.executable, "-c", _CALLED], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == ["[1, 2] 0", "[3] True"]
