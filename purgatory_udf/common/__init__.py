"""Helpers for all packages: configuration, errors, console output, secrets, local files.

No module imports Spark, DuckDB or the rules.
"""
