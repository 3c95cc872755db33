-- purgatory_udf/answers/sql/diagnosis/remote_waits.sql
-- Fetches that waited for reads of remote storage, by broker.
--
-- Reads:    waited
-- Columns:  broker, start_us and end_us (of those that expired), fetches, expired, wait_ms (of those that expired),
--           longest_id (the fetch with the longest wait)

SELECT broker, min(CASE WHEN expired THEN start_us END) AS start_us, max(CASE WHEN expired THEN end_us END) AS end_us,
    count(*) AS fetches, sum(CASE WHEN expired THEN 1 ELSE 0 END) AS expired,
    sum(CASE WHEN expired THEN wait_ms ELSE 0 END) AS wait_ms,
    max_by(operation_id, struct(wait_ms, operation_id)) AS longest_id
FROM waited
WHERE kind = 'remote_fetch' AND NOT after_end
GROUP BY broker
ORDER BY broker
