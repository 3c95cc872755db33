"""Import from a Kafka topic: read once up to its current end, or followed as it grows."""
