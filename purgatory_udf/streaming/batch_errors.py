"""Errors of `foreachBatch` functions, shortened before they reach Spark.

When a query is stopped during a batch, Spark checks whether an error is only the effect of the interruption. It matches
the error's text with a regular expression that needs one JVM stack frame per character. An error that has passed
through Java and Python contains the stacks of both, tens of thousands of characters. The match then fails with a
StackOverflowError, which hides the cause. Stack frames are therefore removed; `--verbose` logs them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from purgatory_udf.common.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

Write = Callable[["DataFrame", int], None]

# Matching a text of this length takes a small part of the default stack of a JVM thread.
MAX_ERROR_CHARS = 1_500
_MAX_LINE_CHARS = 400
_STACK_FRAME_PREFIXES = ("\tat ", "\t... ", "  File ", "    ")


class BatchError(Exception):
    """An error of a batch and its causes, without stack traces."""


def shorten_errors(write: Write) -> Write:
    """Wrap a function for `foreachBatch` so that it raises short errors. A `UserError` passes unchanged."""

    @functools.wraps(write)
    def run(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except UserError:
            raise
        except Exception as error:
            log.debug("batch %s", number, exc_info=True)
            raise BatchError(shorten_text(f"{type(error).__module__}.{type(error).__name__}: {error}")) from None

    return run


def shorten_text(text: str) -> str:
    """Return the distinct lines of `text` that are not stack frames.

    If they exceed `MAX_ERROR_CHARS`, the middle is left out: the first line names the error, the last one its cause.
    """
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(_STACK_FRAME_PREFIXES))
    brief = "\n".join(dict.fromkeys(line[:_MAX_LINE_CHARS] for line in lines))
    if len(brief) <= MAX_ERROR_CHARS:
        return brief
    half = MAX_ERROR_CHARS // 2
    return f"{brief[:half]} …\n… {brief[-half:]}"
