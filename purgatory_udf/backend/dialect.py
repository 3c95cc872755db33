"""Column functions and windows for queries: Spark's, or those of `backend.local`, as this process has chosen.

    from purgatory_udf.backend.dialect import Window
    from purgatory_udf.backend.dialect import functions as sf

An answer is written once, with pyspark's names, for either.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from purgatory_udf.common.errors import NeedsSparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession, Window, functions

    from purgatory_udf.backend.local.session import LocalSession

__all__ = ["Window", "functions", "is_local", "local", "locally", "locally_in_this_thread"]

# Where each is found: a module, and the name within it, if it is not the module itself.
_SPARK = {"functions": ("pyspark.sql.functions", ""), "Window": ("pyspark.sql.window", "Window")}
_LOCAL = {
    "functions": ("purgatory_udf.backend.local.functions", ""),
    "Window": ("purgatory_udf.backend.local.window", "LocalWindow"),
}
_chosen = _SPARK
# Where a thread alone has chosen otherwise.
_of_thread = threading.local()


class _Names:
    """The names of what is looked up when they are used."""

    def __init__(self, of: str) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        module, within = (_LOCAL if is_local() else _SPARK)[self._of]
        imported = import_module(module)
        try:
            return getattr(getattr(imported, within) if within else imported, name)
        except AttributeError:
            if is_local():
                raise NeedsSparkError(f"{self._of}.{name}") from None
            raise


if not TYPE_CHECKING:
    functions = _Names("functions")
    Window = _Names("Window")


@contextmanager
def locally() -> Iterator[None]:
    """Answers that are given meanwhile are given without Spark, whichever thread asks."""
    global _chosen
    before, _chosen = _chosen, _LOCAL
    try:
        yield
    finally:
        _chosen = before


@contextmanager
def locally_in_this_thread() -> Iterator[None]:
    """Only this thread's; others may be at work with Spark."""
    before = getattr(_of_thread, "local", False)
    _of_thread.local = True
    try:
        yield
    finally:
        _of_thread.local = before


def local(session: SparkSession) -> LocalSession | None:
    """The session, if it is none of Spark's."""
    local_session: Any = session
    return local_session if is_local() else None


def is_local() -> bool:
    """Whether this is such a moment."""
    return _chosen is _LOCAL or getattr(_of_thread, "local", False)
