"""Recorded traces in: every line becomes a row of `events`, or of `rejected_events` with the reason."""
