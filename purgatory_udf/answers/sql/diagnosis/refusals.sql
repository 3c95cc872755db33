-- purgatory_udf/answers/sql/diagnosis/refusals.sql
-- Produces and fetches that ended with an error of a partition, by error, partition and second.
--
-- Reads:    ended
-- Columns:  error; topic, partition, broker, client_id, time_us (of the first), last_us (of the last), operations

WITH answered AS (
    SELECT operation_id, broker, client_id, ended_at, explode(partitions) AS part
    FROM ended
    -- With IN, DuckDB would read all columns of all rows first.
    WHERE NOT (kind NOT IN ('produce', 'fetch'))
)
SELECT part.error AS error, part.topic AS topic, part.partition AS partition, broker, client_id,
    min(unix_micros(ended_at)) AS time_us, max(unix_micros(ended_at)) AS last_us, count(*) AS operations, min(operation_id) AS first_id
FROM answered
WHERE part.error NOT IN ('NONE', 'REQUEST_TIMED_OUT')
GROUP BY part.error, part.topic, part.partition, broker, client_id, CAST(floor(unix_micros(ended_at) / 1000000) AS BIGINT)
ORDER BY time_us, error, topic, partition, client_id
