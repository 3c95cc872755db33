"""Over how many tasks a run's groups are spread.

Each task of a stateful query is a state store, which costs every batch a commit of its own whether a group of it had
events or not, and what such a query says is written by as many tasks. Spark's default of 200 is meant for clusters of
many machines: on two executors of one core each it makes minutes of a batch that takes seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from purgatory_udf.query import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING = "spark.sql.shuffle.partitions"
_FEWEST, _MOST = 8, 200
# So that a core whose groups have little to do helps another.
_FOR_EACH_CORE = 2


def spread(spark: SparkSession) -> None:
    """By the cores that there are by now, where nobody has said otherwise; a run that goes on keeps what its checkpoint
    says."""
    if local(spark) or spark.sparkContext.getConf().contains(_SETTING):
        return
    if spark.conf.get(_SETTING) == str(_MOST):
        spark.conf.set(_SETTING, str(tasks(spark.sparkContext.defaultParallelism)))


def tasks(cores: int) -> int:
    return min(_MOST, max(_FEWEST, _FOR_EACH_CORE * cores))
