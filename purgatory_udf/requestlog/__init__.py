"""Kafka's own request log, turned into events of the contract. Its rooms, in the order of the work:

- `lines`: from files to requests
- `cluster`: what the requests, or files beside the log, tell of the cluster as a whole
- `requests`: each request taken apart, into operations and facts of partitions
- `partitions`: from a partition's facts to what happened to it, and when
- `importing`: all that arranged on Spark (`passes`: in which order, however much of a log is read), a whole log at once
- `following`: the same step by step, while the log grows

What no log says is supposed, with numbers that were fitted: `supposed`. How often, and what could not be known, is
counted on the way: `report`. Only the last two need Spark.
"""
