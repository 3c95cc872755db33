-- purgatory_udf/answers/sql/diagnosis/affected.sql
-- The operations that waited longer than usual for a replica (or for the minimum in-sync set without it) within a time.
--
-- Reads:       blame, waited
-- Parameters:  :replica
--              :from_us and :until_us, the time in microseconds since the epoch
--              :slow_ms, the least wait in milliseconds that counts
-- Columns:     one row per kind, client and topic

SELECT b.kind, b.client_id, b.topic, b.cause,
    count(DISTINCT b.operation_id) AS operations,
    count(DISTINCT CASE WHEN w.expired THEN b.operation_id END) AS expired,
    sum(b.wait_ms) AS wait_ms,
    max(b.wait_ms) AS longest_ms
FROM blame b
JOIN waited w ON w.operation_id = b.operation_id
WHERE b.cause IN ('follower_behind', 'below_min_isr', 'replication_throttled') AND b.replica = :replica
    AND b.wait_ms >= :slow_ms AND unix_micros(b.ended_at) > :from_us AND unix_micros(b.started_at) < :until_us
GROUP BY b.kind, b.client_id, b.topic, b.cause
