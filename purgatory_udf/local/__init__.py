"""Spark's frames without Spark: the part of pyspark's DataFrame that the answers use, in this process. Arrow does what
it can (`sheet`), DuckDB all else.

Where a replay's tables are small and on this machine's disk, an answer over them is over before a JVM has started. The
answers are written once, with pyspark's names; `purgatory_udf.query` says whose names they are in this process. What is
here keeps pyspark's meaning, not theirs, wherever these differ: of nulls, orders, types, quantiles.
"""
