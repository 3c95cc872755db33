"""Compiles Python functions over records with numba, on first use, and caches the machine code on disk.

Only this package imports numba.
"""

from __future__ import annotations

import os
from enum import EnumMeta, IntEnum

# What one machine has compiled must run on the others of a cluster. numba asks when it is imported.
os.environ.setdefault("NUMBA_CPU_NAME", "generic")


# Words that are numbers in compiled code.


class Numbers(EnumMeta):
    """Of words whose numbers compiled code takes for numbers (see `compiled`)."""


class Number(IntEnum, metaclass=Numbers):
    """A word, and the number that stands for it."""
