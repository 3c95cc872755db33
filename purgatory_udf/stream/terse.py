"""What goes wrong in a batch's Python function, told to Spark in few words.

When a query is stopped in mid-batch, Spark asks whether an error is only its own interruption: it searches the error's
text with a regular expression that takes a frame of the stack for each letter. The text of an error that has come
through Java and Python holds both stacks, tens of thousands of letters: the search itself then ends in a
StackOverflowError, on the terminal and in place of the answer. So stacks are left out (`--verbose` logs them).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from purgatory_udf.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

Write = Callable[["DataFrame", int], None]

# A search through so many takes a small part of a JVM's usual stack.
MOST_LETTERS = 1_500
_MOST_OF_A_LINE = 400
_STACK = ("\tat ", "\t... ", "  File ", "    ")


class BatchError(Exception):
    """What happened, and each of its causes, without any stack."""


def tersely(write: Write) -> Write:
    """The function for `foreachBatch`, whose errors are short."""

    @functools.wraps(write)
    def run(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except UserError:
            raise
        except Exception as error:
            log.debug("batch %s", number, exc_info=True)
            raise BatchError(shortened(f"{type(error).__module__}.{type(error).__name__}: {error}")) from None

    return run


def shortened(text: str) -> str:
    """The text's lines that are no frames of a stack, each once; of very many the first and, since it is the cause,
    the last."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith(_STACK))
    brief = "\n".join(dict.fromkeys(line[:_MOST_OF_A_LINE] for line in lines))
    if len(brief) <= MOST_LETTERS:
        return brief
    half = MOST_LETTERS // 2
    return f"{brief[:half]} …\n… {brief[-half:]}"
