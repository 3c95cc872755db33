"""Imports JSON Lines and Parquet: every line becomes a row of `events`, or of `rejected_events` with the reason."""
