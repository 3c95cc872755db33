"""Compiles Python functions over records with numba, on first use, and caches the machine code on disk.

- `records`: tables of records, accessors for compiled code, copies in numpy
- `compiled_functions`: the decorators, and operations that are one instruction
- `code_cache`: where compiled code is cached, and whether numba is the pinned version
- `line_layout`: describes lines of text, and loads the code that reads them into columns; `line_scanner`: that code;
  `ordered_maps`: partitions of fetch sessions. Only imports of request logs use these three
- `numba_pipeline`: a faster compilation of helpers, with the pinned version of numba

Only this package imports numba; `line_layout` and `ordered_maps` do not.
"""

from __future__ import annotations

import os
from enum import EnumMeta, IntEnum

# Code compiled on one machine must run on the others of a cluster. numba reads this variable when it is imported.
os.environ.setdefault("NUMBA_CPU_NAME", "generic")


class Int64EnumMeta(EnumMeta):
    """Metaclass of enumerations that compiled code treats as int64 (see `compiled_functions`)."""


class Int64Enum(IntEnum, metaclass=Int64EnumMeta):
    """An enumeration of names for the numbers in compiled code's records."""
