"""The timeline of a partition at one broker: facts become events of its log, high watermark and leadership.

- `append_offsets`: offsets of appends, and appends without a PRODUCE line
- `leadership_changes`, `partition_status`: leadership and in-sync set as the broker knew them
- `time_correction`: corrects assumed times by what readers' offsets and responses prove
- `event_sweep`: processes everything in time order and writes the events
- `partition_timeline`: all of this for one partition
"""
