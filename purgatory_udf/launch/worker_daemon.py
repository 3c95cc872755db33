"""Spark's daemon of Python workers on one machine: it imports what workers need before it forks them.

Spark starts the daemon with the first task in Python, and the daemon forks a worker for each task at the same time.
Workers share its modules and the engine's compiled code, instead of each loading them in one to two seconds of CPU
time. Their garbage collections, one after each task, skip frozen objects.
"""

from __future__ import annotations

import gc
from importlib import import_module

_MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.state",
    "purgatory_udf.streaming.stateful_adapter",
    "purgatory_udf.streaming.partition_rules",
    "purgatory_udf.streaming.group_rules",
)
_WARM_UP_MODULE = "purgatory_udf.rules.warm_up"


def main() -> None:
    """Load the modules, and run Spark's daemon until Spark closes its stdin."""
    from pyspark import daemon

    # Nothing of this is freed: scanning it takes longer than importing it.
    gc.disable()
    for name in _MODULES:
        import_module(name)
    import_module(_WARM_UP_MODULE).load()
    gc.freeze()
    gc.enable()
    daemon.manager()


if __name__ == "__main__":
    main()
