"""Parallel import of request logs: rows between tasks, the total order of events, pseudonyms, output tables."""
