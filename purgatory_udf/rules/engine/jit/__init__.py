"""Compiles Python functions over records with numba, once for each version, and stores the machine code on disk.

- `records`: tables of records, accessors for compiled code, copies in numpy
- `compiled_functions`: the decorators of helpers, and operations that are one instruction
- `code_cache`: entry points, which Python calls, and the folder with their machine code
- `line_layout`: describes lines of text; `line_scanner` reads them into columns; `ordered_maps`: partitions of fetch
  sessions. Only imports of request logs use these three
- `numba_compiler`: compiles an entry point; `numba_pipeline`: a faster compilation of helpers, with the pinned version

Only the last two import numba, and only a process that compiles imports them.
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
