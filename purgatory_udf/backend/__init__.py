"""Execution of queries and tasks, by Spark or by this process with DuckDB and Arrow.

- `backend`: the interface, and its two implementations
- `sql_database`, `delta_store`, `local_delta`, `file_system`: queries, Delta tables and files
- `dataset`: the steps of imports, in Spark's tasks, in threads or in forked processes
- `process_pool`: threads and forked processes
- `spilled_dataset`, `spark_dataset`: their rows in files, for large inputs, and in Spark
- `spark_workers`: Spark's Python workers
"""
