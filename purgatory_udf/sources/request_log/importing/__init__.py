"""Parallel import of request logs.

- `log_import`, `import_options`: the import of a whole log, its options and pseudonyms
- `log_reader`, `import_rows`: files to requests, and the rows between tasks
- `broker_pauses`: times at which a broker stood still
- `import_tasks`, `import_passes`, `import_tables`: the tasks, the total order of events, output tables
- `follow_step`, `carried_state`: the import of a growing log in steps, and the state between two steps
- `settings_evidence`: settings of the brokers that a growing log has shown so far, or that only a whole log shows
"""
