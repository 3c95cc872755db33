"""Answers from the tables of a replay, computed by the queries in `sql`.

- `run_tables`: the tables of a run, and queries of them
- `replay_summary`, `audit`: what a replay prints at its end, and the check of its tables
- `metrics`, `prometheus`: metrics as tables, and as text for Prometheus
- `explain`, `evidence`, `operation_story`: the story of an operation, a request or a group
- `report`, `charts`, `page_template`: the report as a page with charts
- `what_if`, `variants`: a trace replayed under several configurations
- `diagnosis`: the causes of unusual waits
- `fidelity_run`: a replay compared with the recorded brokers, and a cause for each operation that ended differently;
  `outcome_comparison`: its rows; `broker_readings`: JMX readings and server logs
"""
