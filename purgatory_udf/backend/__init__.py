"""Execution of queries and tasks: by Spark, or by this process with DuckDB and Arrow."""
