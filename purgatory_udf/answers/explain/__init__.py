"""The story of an operation or a group: its request, the partitions that it waited on, and the reason for its end."""
