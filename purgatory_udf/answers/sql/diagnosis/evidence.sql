-- purgatory_udf/answers/sql/diagnosis/evidence.sql
-- The operations that waited longest for a replica within a time: what to `explain`.
--
-- Reads:       blame
-- Parameters:  :replica
--              :from_us and :until_us, the time in microseconds since the epoch
--              :top, maximum number of rows

SELECT operation_id, sum(wait_ms) AS wait_ms
FROM blame
WHERE cause IN ('follower_behind', 'below_min_isr') AND replica = :replica
    AND unix_micros(ended_at) > :from_us AND unix_micros(started_at) < :until_us
GROUP BY operation_id
ORDER BY wait_ms DESC, operation_id
LIMIT :top
