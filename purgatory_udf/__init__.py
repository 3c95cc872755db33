"""Purgatory Replay: why Kafka's requests waited, what ended them, and what if the timeout were different.

The packages, whose imports form no cycle (`docs/architecture.md` has their order):

- `common`, `contract`: helpers; the event contract and the schemas of tables
- `rules`: Kafka's rules for waiting requests and groups, as a reference and as a compiled engine
- `backend`, `storage`: execution by Spark or in this process; output folders
- `sources`: import of traces; `simulation`, `prediction`: simulated traces, and models of recorded clusters
- `streaming`: the replay as Structured Streaming queries; `answers`: reports and diagnoses from its tables
- `launch`: the start of a job
"""

__version__ = "0.2.0"
