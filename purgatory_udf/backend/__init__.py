"""Who executes queries and tasks: Spark, or this process with DuckDB and Arrow."""
