-- purgatory_udf/answers/sql/diagnosis/affected.sql
-- The operations that waited longer than usual for a replica (or for the minimum in-sync set without it) within a time.
--
-- Reads:       blame, waited
-- Parameters:  :replica
--              :from_us and :until_us, the time in microseconds since the epoch
--              :slow_ms, the least wait in milliseconds that counts
--              :last_us, the end of the trace in microseconds since the epoch; what lies behind it is not counted
-- Columns:     one row per kind, client and topic

WITH parts AS (
    SELECT operation_id, kind, client_id, topic, cause,
        least(wait_ms, CAST(floor((:last_us - unix_micros(started_at)) / 1000) AS BIGINT)) AS wait_ms
    FROM blame
    WHERE cause IN ('follower_behind', 'below_min_isr') AND replica = :replica
        AND unix_micros(ended_at) > :from_us AND unix_micros(started_at) < :until_us
)
SELECT b.kind, b.client_id, b.topic, b.cause,
    count(DISTINCT b.operation_id) AS operations,
    count(DISTINCT CASE WHEN w.expired AND NOT w.after_end THEN b.operation_id END) AS expired,
    sum(b.wait_ms) AS wait_ms,
    max(b.wait_ms) AS longest_ms
FROM parts b
JOIN waited w ON w.operation_id = b.operation_id
WHERE b.wait_ms >= :slow_ms
GROUP BY b.kind, b.client_id, b.topic, b.cause
