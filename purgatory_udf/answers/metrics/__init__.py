"""Metrics of a replay for operators: Kafka's own meters, waits, causes, rebalances."""
