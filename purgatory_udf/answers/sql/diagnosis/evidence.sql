-- purgatory_udf/answers/sql/diagnosis/evidence.sql
-- The operations that waited longest for a replica within a time: what to `explain`.
--
-- Reads:       replica_waits
-- Parameters:  :replica
--              :from_us and :until_us, the time in microseconds since the epoch
--              :top, maximum number of rows

SELECT operation_id, sum(wait_ms) AS wait_ms
FROM replica_waits
WHERE replica = :replica AND end_us > :from_us AND start_us < :until_us
GROUP BY operation_id
ORDER BY wait_ms DESC, operation_id
LIMIT :top
