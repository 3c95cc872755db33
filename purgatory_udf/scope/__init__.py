"""What-if settings, and whose requests they are for."""
