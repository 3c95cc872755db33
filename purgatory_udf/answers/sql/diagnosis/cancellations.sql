-- purgatory_udf/answers/sql/diagnosis/cancellations.sql
-- Waiting requests that were cancelled because their broker stopped, by broker, client and second.
--
-- Reads:    cancelled
-- Columns:  broker, client_id, time_us (of the first), operations, first_id

SELECT broker, client_id, min(unix_micros(ended_at)) AS time_us, count(*) AS operations, min(operation_id) AS first_id
FROM cancelled
GROUP BY broker, client_id, CAST(floor(unix_micros(ended_at) / 1000000) AS BIGINT)
ORDER BY time_us, broker, client_id
