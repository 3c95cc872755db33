-- purgatory_udf/answers/sql/diagnosis/timeouts.sql
-- Produces that expired, by client and second.
--
-- Reads:    ended, events

SELECT e.client_id, q.timeout_ms, CAST(floor(unix_micros(e.started_at) / 1000000) AS BIGINT) AS second,
    min(unix_micros(e.started_at)) AS start_us,
    max(unix_micros(e.ended_at)) AS end_us,
    count(*) AS operations,
    sum(e.wait_ms) AS wait_ms,
    min(e.operation_id) AS first_id
FROM ended e
JOIN events q ON q.seq = e.operation_id
WHERE e.kind = 'produce' AND e.expired AND NOT e.after_end
GROUP BY e.client_id, q.timeout_ms, CAST(floor(unix_micros(e.started_at) / 1000000) AS BIGINT)
ORDER BY start_us, client_id
