"""The timeline of a partition at one broker: facts become events of its log, high watermark and leadership.

- `append_offsets`: offsets of appends, and appends without a PRODUCE line
- `leadership_changes`, `partition_status`: leadership and in-sync set as the broker knew them
- `tiered_reads`: fetches that waited for remote storage, and the start of the local log
- `time_correction`: corrects assumed times, from the evidence in readers' offsets and in responses
- `high_watermark_events`: processes all of this in time order, and writes the events of log, high watermark and leader
- `partition_timeline`: combines these modules for one partition
"""
