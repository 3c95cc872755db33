"""Output folders: layout, locks and run records; checkpoints, files of events, and maintenance of tables."""
