-- purgatory_udf/answers/sql/diagnosis/affected.sql
-- The operations that waited longer than usual for a replica (or for the minimum in-sync set without it) within a time.
--
-- Reads:       replica_waits
-- Parameters:  :replica
--              :from_us and :until_us, the time in microseconds since the epoch
--              :slow_ms, the least wait in milliseconds that counts
--              :last_us, the end of the trace in microseconds since the epoch; what lies behind it is not counted
-- Columns:     one row per kind, client and topic

WITH parts AS (
    SELECT operation_id, kind, client_id, topic, cause, timed_out,
        least(wait_ms, CAST(floor((:last_us - start_us) / 1000) AS BIGINT)) AS wait_ms
    FROM replica_waits
    WHERE replica = :replica AND end_us > :from_us AND start_us < :until_us
)
SELECT kind, client_id, topic, cause,
    count(DISTINCT operation_id) AS operations,
    count(DISTINCT CASE WHEN timed_out THEN operation_id END) AS expired,
    sum(wait_ms) AS wait_ms,
    max(wait_ms) AS longest_ms
FROM parts
WHERE wait_ms >= :slow_ms
GROUP BY kind, client_id, topic, cause
