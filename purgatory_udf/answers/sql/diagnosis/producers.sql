-- purgatory_udf/answers/sql/diagnosis/producers.sql
-- Produces with acks=all by client: their timeouts, sizes and waits.
--
-- Reads:    produce_sizes, ended
-- Columns:  client_id; timeout_ms (median), requests, expired, bytes (median of a request), total_bytes, wait_ms (median),
--           start_us, end_us (first and last request)

SELECT e.client_id,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY s.timeout_ms) AS timeout_ms,
    count(*) AS requests,
    count_if(e.expired) AS expired,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY s.bytes) AS bytes,
    sum(s.bytes) AS total_bytes,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY e.wait_ms) AS wait_ms,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY e.wait_ms) AS p99_ms,
    min(unix_micros(e.started_at)) AS start_us,
    max(unix_micros(e.ended_at)) AS end_us
FROM ended e
JOIN produce_sizes s ON s.operation_id = e.operation_id
WHERE e.kind = 'produce'
GROUP BY e.client_id
