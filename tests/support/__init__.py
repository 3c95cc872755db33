"""Helpers of the tests: timelines, recordings, hypothesis strategies, scheduling."""
