"""The group coordinator over batches of events: state in and out as bytes, heartbeats decided on columns."""
