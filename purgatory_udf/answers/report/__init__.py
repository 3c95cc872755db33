"""The report of a replay as one HTML file: outcomes over time, purgatory sizes, and the slowest operations."""
