"""Import of Kafka's request log: lines become events of the contract.

    lines ─► requests ─┬─► operations ────────────────────────────────┬─► events
                       └─► facts of a partition at a broker ─► timeline ┘

In reading order:

- `log_files`: finds and opens log files, and reads timestamps
- `complete_parser`: parses any line to a request; `fast_parser`: parses lines in Kafka's own layout with compiled
  decoders; `compiled_parser`: reads fetches and produces in this layout with code compiled by numba; `logged_request`:
  a request, and its operation with the recorded outcome
- `kafka_protocol`: Kafka's error codes, and decoders of the bodies of fetches and produces
- facts about the cluster that the import of every broker's log needs: `cluster_metadata` (leaders, in-sync sets, broker
  lifecycle, also from a dump of the metadata log), `internal_topics` (appends of coordinators), `cluster_facts`
  (collects them from requests), `cluster_context` (combines them with files of the operator)
- each request becomes operations, which are events, and facts about partitions: `request_conversion`, with
  `produce_conversion`, `fetch_conversion`, `group_conversion` and `share_conversion`; `fetch_sessions`: sessions
  rebuilt; `fact_kinds`, `fact_columns`, `partition_facts`: the kinds of facts, many facts of a kind as columns, and all
  facts of a partition
- the facts of a partition become the events of its log, high watermark and leadership: `partition_timeline`, with
  `append_offsets`, `leadership_changes`, `partition_status`, `tiered_reads`, `time_correction` and
  `high_watermark_events`, which processes all of this in time order
- `inferred_settings`: settings of the brokers that requests reveal
- `assumptions`: timing assumptions, and counts of everything that the log did not show
- `importing`: the import of a whole log, or of a growing log step by step
"""
