"""Purgatory Replay: why Kafka's requests waited, what ended them, and what if the timeout were different."""

__version__ = "0.2.0"
