"""The loop beside Kafka's own classes: the same traces through both, on one machine, turn about."""
