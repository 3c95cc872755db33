"""The replay as Spark runs it: one pipeline, and two sets of rules that it carries.

- `replay`, `following`: a finished trace to its end; a table that still grows
- `options`, `beginning`, `survey`, `source`: what is asked, which run that is, what its trace holds, in which batches
- `queries`: which queries a run has; `query`: one of them, whatever its rules
- `packing`, `adapter`, `sink`: before the shuffle, by group, and to the tables
- `rules`: all that these know of what they carry; `partition_rules` and `group_rules` keep it
- `coordinator_gauges`, `ending`, `counting`, `group_disagreements`: what is known when a batch, or all, is over
- `running`, `inspection`: a query's progress and end; what a checkpoint holds
"""
