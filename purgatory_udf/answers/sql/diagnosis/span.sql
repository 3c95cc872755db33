-- purgatory_udf/answers/sql/diagnosis/span.sql
-- The time of the trace, and the longest wait that a follower's fetch allowed.
--
-- Reads:  events

SELECT min(time_us) AS start_us, max(time_us) AS end_us, max(CASE WHEN replica_id >= 0 THEN max_wait_ms END) AS max_wait_ms
FROM events
