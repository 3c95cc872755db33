"""What every package may use: configuration, errors, console tables, secrets, local paths.

Nothing here imports Spark, DuckDB or the rules.
"""
