"""Benchmarks. They print ratios of interleaved runs, because absolute times of one machine mean little on another.

- `engine_speed`, `kafka_classes`: the engine against the reference and against Kafka's own classes
- `replay`, `costs`, `lopsided`, `groups_many`: whole replays, their cost model, skewed traces, many consumer groups
- `ingest`, `followed_log`: imports, and a request log that is followed
- `diagnosis`, `simulated_incidents`, `combined_incidents`: precision and recall of `diagnose` on simulated incidents
- `simulation_speed`: events per second of `simulate`
- `partition_trace`, `groups_trace`, `topic`: inputs of these

Each one writes its figures with `--json FILE`, and prints them next to those of an earlier run with `--compare FILE`.
"""
