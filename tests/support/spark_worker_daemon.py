"""Spark's daemon for Python workers in the tests' session: loads the workers' modules before it forks them.

Restarted queries need new workers, and a worker collects garbage after each task, which can take longer than a small
task. Modules loaded before the fork are loaded once, and frozen objects are skipped by the collector.
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
