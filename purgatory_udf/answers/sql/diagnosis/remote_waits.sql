-- purgatory_udf/answers/sql/diagnosis/remote_waits.sql
-- Fetches that waited for reads of remote storage, by broker and second.
--
-- Reads:       waited
-- Parameters:  :slow_ms, the least wait in milliseconds that counts as slow
-- Columns:     broker; time_us and end_us (of the slow ones, or null), fetches, slow (expired, or waited that long),
--              expired, wait_ms (of the slow ones), longest_ms, longest_id (the fetch with the longest wait)

WITH reads AS (
    SELECT broker, operation_id, start_us, end_us, wait_ms, expired, expired OR wait_ms >= :slow_ms AS slow
    FROM waited
    WHERE kind = 'remote_fetch' AND NOT after_end
)
SELECT broker,
    CAST(floor(start_us / 1000000) AS BIGINT) AS second,
    min(CASE WHEN slow THEN start_us END) AS time_us,
    max(CASE WHEN slow THEN end_us END) AS end_us,
    count(*) AS fetches,
    count_if(slow) AS slow,
    count_if(expired) AS expired,
    sum(CASE WHEN slow THEN wait_ms ELSE 0 END) AS wait_ms,
    max(wait_ms) AS longest_ms,
    max_by(operation_id, struct(wait_ms, operation_id)) AS longest_id
FROM reads
GROUP BY broker, CAST(floor(start_us / 1000000) AS BIGINT)
ORDER BY broker, second
