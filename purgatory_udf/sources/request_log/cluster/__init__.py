"""Facts about the cluster that the import of every broker's log needs: leaders, topic names, transactions, groups.

- `cluster_metadata`: leaders, in-sync sets and broker lifecycle, from requests or from a dump of the metadata log
- `internal_topics`: appends of coordinators to their own topics
- `record_batches`: record batches on disk, from the file of `--batches`
- `cluster_facts`: collects all of this from the requests of a log
- `cluster_context`: combines the facts from the log with files of the operator
"""
