"""Helpers for all packages: configuration, errors, console tables, secrets, local paths, worker memory.

No module imports Spark, DuckDB or the rules.
"""
