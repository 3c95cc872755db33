-- purgatory_udf/answers/sql/views/replica_waits.sql
-- The waits for a replica, or for the minimum in-sync set without it. Incidents read them many times.
--
-- Reads:    blame, waited
-- Columns:  those of `blame`, with times in microseconds since the epoch; timed_out, whether the operation expired within
--           the trace

SELECT b.operation_id, b.kind, b.client_id, b.topic, b.cause, b.broker, b.replica,
    unix_micros(b.started_at) AS start_us, unix_micros(b.ended_at) AS end_us, b.wait_ms,
    e.operation_id IS NOT NULL AS timed_out
FROM blame b
-- Expirations are few; DuckDB would keep all operations in memory for this join.
LEFT JOIN (SELECT operation_id FROM waited WHERE expired AND NOT after_end) e ON e.operation_id = b.operation_id
WHERE b.cause IN ('follower_behind', 'below_min_isr')
