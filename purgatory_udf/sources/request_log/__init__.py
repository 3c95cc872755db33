"""Imports Kafka's request log: lines become events of the contract. In the order of the work:

- `lines`: files to requests
- `cluster`: facts about the cluster as a whole, from requests or from files given along with the log
- `requests`: each request becomes operations and facts about partitions
- `partitions`: from a partition's facts to its events, with their times
- `importing`: the import of a whole log; `following`: the import of a growing log, step by step
- `assumptions`: timing assumptions, and counts of what could not be derived
"""
