"""Spark's daemon of Python workers for the tests' session, which has loaded what they need before it forks them.

Queries that are stopped and begun again cost workers their lives, and after each task a worker has Python look through
all of its objects for what nobody reaches any more: mostly modules, which stay, for longer than a small task takes.
What was loaded before the fork is loaded once, and frozen: nobody looks through it.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark import daemon

from purgatory_udf.rules import warm_up
from purgatory_udf.streaming import batch_sink, group_rules, partition_rules  # noqa: F401


def main() -> None:
    warm_up.main()
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
