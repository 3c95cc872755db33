"""Recorded events from a Kafka topic: read once to its present end, or followed as it grows."""
