"""Import of Kafka's request log: lines become events of the contract.

    lines ─► requests ─┬─► operations ────────────────────────────────┬─► events
                       └─► facts of a partition at a broker ─► timeline ┘

In reading order:

- `log_files`: finds and opens log files, and reads timestamps
- `log_line`: parses any line to a request; `fast_parser`: parses lines in Kafka's own layout with compiled decoders
- `request_bodies`, `error_codes`: decodes the bodies of fetches and produces; Kafka's error codes
- `cluster`: facts about the cluster that all brokers share, from requests or from files of the operator
- `requests`: each request becomes operations, which are events, and facts about partitions
- `partitions`: the facts of a partition become the events of its log, high watermark and leadership
- `shown_settings`, `replica_lag`: settings of the brokers that requests reveal
- `assumptions`: timing assumptions, and counts of everything that the log did not show
- `importing`: the import of a whole log, or of a growing log step by step
"""
