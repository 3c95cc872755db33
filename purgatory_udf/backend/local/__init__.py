"""DataFrames without Spark: the part of pyspark's API that this package uses, over DuckDB and Arrow.

Results follow pyspark where DuckDB and Arrow differ from it: nulls, orders, types, quantiles.
"""
