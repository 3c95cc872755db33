"""The start of a job: command line, virtual environment, Java, jars, spark-submit, session.

In the order of a start: `__main__` calls `command_line`, `job` (the job's options), `runtimes` (Java, Spark and the
virtual environment), `jars` (Delta, Kafka), `submission` (the spark-submit call) and `jvm` or spark-submit itself.
`backend_choice` decides before that whether the job needs Spark at all.
The job then calls `spark_session`. `jvm` and `backend.spark_workers` make starts faster
(`docs/performance.md` lists by how much); `package_archive` packs the environment for a cluster.

`__main__` runs on a bare Python: until the virtual environment is entered, only the standard library is imported.
"""
