"""Which pipeline compiles helpers: the one of `helper_pipeline`, or numba's default.

`helper_pipeline` uses internals of one version of numba. If another version is installed, or the internals are missing,
the engine still works: it takes about three times as long to compile and up to a fifth longer to run.
"""

from __future__ import annotations

import logging

import numba

log = logging.getLogger(__name__)

# As in pyproject.toml.
PINNED_NUMBA = "0.68.1"


def _helper_pipeline() -> type | None:
    if numba.__version__ == PINNED_NUMBA:
        try:
            from purgatory_udf.rules.engine.jit.helper_pipeline import HelperCompiler
        except (ImportError, AttributeError, TypeError) as error:
            reason = f"lacks expected internals ({error})"
        else:
            return HelperCompiler
    else:
        reason = f"is not the tested version {PINNED_NUMBA}"
    log.warning("numba %s %s: the engine takes longer to compile", numba.__version__, reason)
    return None


# The compiler class, or None for numba's default.
HELPER_PIPELINE = _helper_pipeline()
