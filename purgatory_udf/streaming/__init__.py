"""The replay as a Structured Streaming job: one pipeline, and rules for partitions, consumer groups and share groups.

- `replay_run`: the steps of a replay, of a finished trace or a growing table
- `run_resumption`, `event_source`: options and which run is resumed; the trace and its batches
- `streaming_query`: the queries of a run, their monitoring and stop; the replay of one batch without Spark
- `stateful_adapter`: connects Spark's group state with the rules, and defines the interface of the rules
- `partition_rules`, `group_rules`, `share_rules`: the implementations of that interface
- `batch_sink`: writes the results of each batch to tables exactly once, by this process or by Spark
- `group_disagreements`: comparison with recorded responses to group members
- `checkpoints`: preparation and inspection of checkpoints; snapshots of the sink
- `progress_line`: the progress of a running query
- `status_update`, `status_file`, `top_screen`: what `top` shows; `metrics_server`: the same for Prometheus
"""
