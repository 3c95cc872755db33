"""Helpers for all packages: configuration, errors, console tables, secrets, local paths, worker memory.

Nothing here imports Spark, DuckDB or the rules.
"""
