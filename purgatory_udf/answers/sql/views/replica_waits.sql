-- purgatory_udf/answers/sql/views/replica_waits.sql
-- The waits for a replica, or for the minimum in-sync set without it. Incidents read them many times.
--
-- Reads:    met_conditions, waited
-- Columns:  those of the table `blame`, with times in microseconds since the epoch; timed_out, whether the operation
--           expired within the trace

SELECT m.operation_id, m.kind, m.client_id, m.topic, m.cause, m.broker, m.replica, m.from_us AS start_us, m.met_us AS end_us,
    unix_millis(timestamp_micros(m.met_us)) - unix_millis(timestamp_micros(m.from_us)) AS wait_ms,
    e.operation_id IS NOT NULL AS timed_out
FROM met_conditions m
-- Expirations are few; DuckDB would keep all operations in memory for this join.
LEFT JOIN (SELECT operation_id FROM waited WHERE expired AND NOT after_end) e ON e.operation_id = m.operation_id
WHERE m.cause IN ('follower_behind', 'below_min_isr') AND m.met_us > m.from_us
