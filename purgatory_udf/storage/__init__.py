"""Output folders: their layout and locks, run records, checkpoints, files of events, and maintenance of tables.

- `output_folder`, `run_records`: paths and locks; the table `runs`, and settings of the recorded brokers
- `event_staging`: files of events in time order
- `checkpoints`: checkpoints of queries, and snapshots of their sinks
- `maintenance`: compaction and vacuum
"""
