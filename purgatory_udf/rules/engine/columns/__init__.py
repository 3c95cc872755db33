"""Arrow tables of events become the engine's records; the engine's results become Arrow tables.

- `explode`, `parallel_pieces`, `event_records`: events to a call, in several threads
- `column_access`: reading Arrow columns in compiled code
- `outcome_tables`: decisions to tables
"""
