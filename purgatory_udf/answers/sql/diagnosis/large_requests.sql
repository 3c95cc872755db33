-- purgatory_udf/answers/sql/diagnosis/large_requests.sql
-- Produces with acks=all of at least a size, by client and second.
--
-- Reads:       produce_sizes, ended
-- Parameters:  :large_bytes, the least size in bytes
-- Columns:     client_id; time_us and end_us (from the first start to the last end), requests, expired, bytes (median),
--              total_bytes, p50_ms (median wait), wait_ms (sum), longest_id (the request with the longest wait)

SELECT e.client_id,
    min(unix_micros(e.started_at)) AS time_us,
    max(unix_micros(e.ended_at)) AS end_us,
    count(*) AS requests,
    count_if(e.expired) AS expired,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY s.bytes) AS bytes,
    sum(s.bytes) AS total_bytes,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY e.wait_ms) AS p50_ms,
    sum(e.wait_ms) AS wait_ms,
    max_by(e.operation_id, struct(e.wait_ms, e.operation_id)) AS longest_id
FROM produce_sizes s
JOIN ended e ON e.operation_id = s.operation_id
WHERE e.kind = 'produce' AND s.bytes >= :large_bytes
GROUP BY e.client_id, CAST(floor(unix_micros(e.started_at) / 1000000) AS BIGINT)
ORDER BY client_id, time_us
