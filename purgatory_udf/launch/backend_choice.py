"""Decides whether a job runs in this process or in Spark, by the size and place of its input and Spark's options.

A job runs in this process if its inputs are small and on this machine, no option for Spark is given, and no cluster is
the master. Without inputs, its outputs must be on this machine. A job that turns out to need Spark raises
NeedsSparkError before it has any effect, and the launcher starts it again in Spark.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import resource
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import ANY_BYTES as ANY_BYTES
from purgatory_udf.common.local_files import is_local_path, is_small_and_local, local_bytes
from purgatory_udf.launch import submission

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Backend

# Opens the backend that was chosen for a job. Jobs call it when they need it, because Spark takes seconds to start.
OpenBackend: TypeAlias = "Callable[[], Backend]"

# Bytes of text up to which a job is tiny or brief, and the files with Spark's settings for such jobs; and the settings
# for jobs of any size in which Python workers do the work.
_TINY_BYTES, LITTLE_BYTES = 2_000_000, 128_000_000
BRIEF = ("spark-local-brief.conf",)
TINY = (*BRIEF, "spark-local-tiny.conf")
PYTHON = ("spark-local-python.conf",)
# Maximum size, in bytes, of inputs that this process replays in memory.
REPLAYED_BYTES = 1_000_000_000
# Bytes of memory that a replay takes for an event and for a watch, and an import for an event that it rejects because
# of others. They may take a share of this machine's memory and half of what is free, but at least so many bytes.
_BYTES_PER_ROW, _MEMORY_SHARE, _LEAST_BYTES = 1_000, 1 / 6, 1_500_000_000
# Files with the limit of a container's memory, of both versions of control groups.
_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Linux's file with the memory that is free.
_MEMORY = Path("/proc/meminfo")
# Address space below which Arrow waits forever for a thread that it cannot start, and DuckDB crashes. With two cores,
# 2.9 GB suffice.
_ADDRESS_BYTES = 3_000_000_000
# Limit for a step of a followed topic: its messages and the rows held back by the previous step.
FOLLOWED_BYTES = 64_000_000


def runs_in_process(
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_bytes: int,
    spark_options: bool,
    settings: Mapping[str, str],
    environ: Mapping[str, str],
) -> bool:
    """Return whether a job runs in this process: its inputs are small and local, and no option or master needs Spark.

    Args:
        inputs: The files and tables that the job reads.
        outputs: The folders that it writes, which decide if it reads nothing.
        max_bytes: Maximum total size for which the job runs in this process; 0 for never.
        spark_options: Whether the command line has options for Spark.
        settings: Spark's settings from the command line and Spark's configuration.
        environ: Environment variables; `MASTER` names the default master.
    """
    if spark_options or not submission.has_local_master({"spark.master": environ.get("MASTER", "local"), **settings}):
        return False
    if max_bytes == 0:
        return False
    if inputs:
        return is_small_and_local(inputs, max_bytes)
    return bool(outputs) and all(map(is_local_path, outputs))


def most_rows_in_memory() -> int:
    """Return how many events and watches of a replay, or compared events of an import, may be in memory."""
    return int(max(_LEAST_BYTES, min(_memory_bytes() * _MEMORY_SHARE, _free_bytes() / 2)) / _BYTES_PER_ROW)


def _memory_bytes() -> int:
    """Return the memory of this machine, or of its container."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _CONTAINER_LIMITS:
        # Without a limit, the file contains the word `max`.
        with suppress(OSError, ValueError):
            sizes.append(int(Path(limit).read_text(encoding="ascii")))
    return min(sizes)


def _free_bytes() -> float:
    """Return the memory of this machine that other processes have left; infinity if it is unknown, as on macOS."""
    with suppress(OSError):
        available = re.search(r"^MemAvailable: +(\d+) kB$", _MEMORY.read_text(encoding="ascii"), re.MULTILINE)
        if available:
            return int(available[1]) * 1024
    return math.inf


def settings_for(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the settings files for Spark that suit the total size of local paths.

    None are returned if there are no paths, because the job reads a topic.
    """
    given = list(paths)
    total = local_bytes(given, LITTLE_BYTES)
    if total is None or not given:
        return ()
    return TINY if total <= _TINY_BYTES else BRIEF


def open_local() -> Backend:
    """Return the backend of this process.

    Raises:
        UserError: The limit of this process's address space is too low for its libraries.
    """
    from purgatory_udf.backend.backend import LocalBackend

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESS_BYTES:
        raise UserError(
            f"the limit of virtual memory (ulimit -v) is {limit / 1e9:.1f} GB, but needs to be at least "
            f"{_ADDRESS_BYTES / 1e9:g} GB, and more on machines with many cores; raise it, or limit the memory of a "
            "container instead"
        )
    return LocalBackend()


def postpone_pandas() -> None:
    """Have Arrow import pandas when a command needs it, instead of with the first array.

    Most commands need no pandas, and its import takes an eighth of the time of a short one.
    """
    import pyarrow as pa

    # What Arrow knows of pandas; another version of Arrow may lack it.
    known = getattr(pa.lib, "_pandas_api", None)
    if known is None or "pandas" in sys.modules:
        return
    # Arrow looks for pandas once. It does not use a version that is too old, and warns of it.
    too_old = ModuleType("pandas")
    too_old.__dict__["__version__"] = "0"
    sys.modules["pandas"] = too_old
    with warnings.catch_warnings(action="ignore"):
        pa.array([True])
    del sys.modules["pandas"]
    sys.meta_path.insert(0, _PandasFinder(lambda: known.pd))


class _PandasFinder(MetaPathFinder):
    """Finds pandas when it is first imported, and then calls `found`."""

    def __init__(self, found: Callable[[], object]) -> None:
        self._found = found

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._found()

            setattr(spec.loader, "exec_module", executed)  # noqa: B010 (a type checker refuses the assignment)
        return spec


def spark_opener(app: str) -> OpenBackend:
    """Return a function that opens a Spark session with this name."""

    def open_spark() -> Backend:
        from purgatory_udf.backend.backend import SparkBackend
        from purgatory_udf.launch.spark_session import build_session

        return SparkBackend(build_session(app))

    return open_spark
