"""Helpers of the tests: traces, recordings, strategies, scheduling."""
