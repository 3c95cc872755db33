"""Output folders: their layout and locks, run records, files of events, and maintenance of tables.

- `output_folder`, `run_records`: paths and locks; the table `runs`, and settings of the recorded brokers
- `event_staging`: files of events in time order
- `maintenance`: compaction and vacuum
"""
