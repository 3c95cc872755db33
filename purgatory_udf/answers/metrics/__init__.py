"""From outcome tables to the figures that an operator asks for: Kafka's own meters, waits, causes, rebalances."""
