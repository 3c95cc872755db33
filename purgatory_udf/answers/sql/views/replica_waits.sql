-- purgatory_udf/answers/sql/views/replica_waits.sql
-- The waits for a replica, or for the minimum in-sync set without it. Incidents read them many times.
--
-- Reads:    met_conditions, waited, in_sync_partitions, wait_causes
-- Columns:  those of the table `blame`, with times in microseconds since the epoch; timed_out, whether the operation
--           expired within the trace

SELECT m.operation_id, w.kind, w.client_id, k.topic, c.cause, w.broker, m.replica, m.from_us AS start_us, m.met_us AS end_us,
    unix_millis(timestamp_micros(m.met_us)) - unix_millis(timestamp_micros(m.from_us)) AS wait_ms,
    w.expired AND NOT w.after_end AS timed_out
FROM met_conditions m
JOIN waited w ON w.operation_id = m.operation_id
JOIN in_sync_partitions k ON k.number = m.partition_number
JOIN wait_causes c ON c.number = m.cause
WHERE c.cause IN ('follower_behind', 'below_min_isr') AND m.met_us > m.from_us
