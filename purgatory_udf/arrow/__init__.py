"""Events come as Arrow tables and become the loop's records; what the loop decided becomes Arrow tables."""
