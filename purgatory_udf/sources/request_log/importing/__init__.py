"""The import on Spark: rows between its tasks, the order of all events, names made pseudonyms, the tables written."""
