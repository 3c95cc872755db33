"""How near a replay comes to what the recorded brokers did, with a cause for every operation that ended otherwise."""
