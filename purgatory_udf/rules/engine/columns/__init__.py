"""Arrow tables of events become the engine's records; the engine's results become Arrow tables."""
