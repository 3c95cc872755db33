"""Helpers for all packages: configuration, errors, console output, secrets, local files, worker memory.

No module imports Spark, DuckDB or the rules.
"""
