"""Helpers for all packages: configuration, errors, console output, secrets, local files, the installation.

No module imports Spark, DuckDB or the rules.
"""
