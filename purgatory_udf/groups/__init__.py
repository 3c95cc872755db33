"""The group coordinator over batches of events: a group's state in and out as bytes, heartbeats on columns."""
