"""The group coordinator over batches of events: one group's state in and out as bytes, heartbeats decided on columns."""
