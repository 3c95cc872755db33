"""How Python functions over tables of records become machine code: by numba, on first use, kept on disk."""

import os

# What one machine has compiled must run on the others of a cluster. numba asks when it is imported.
os.environ.setdefault("NUMBA_CPU_NAME", "generic")
