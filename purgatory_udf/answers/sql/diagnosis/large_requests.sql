-- purgatory_udf/answers/sql/diagnosis/large_requests.sql
-- Produces with acks=all of at least a size, by client and second.
--
-- Reads:       produce_sizes
-- Parameters:  :large_bytes, the least size in bytes
-- Columns:     client_id; time_us and end_us (from the first start to the last end), requests, expired, bytes (median),
--              total_bytes, p50_ms (median wait), wait_ms (sum), longest_id (the request with the longest wait)

SELECT client_id,
    min(start_us) AS time_us,
    max(end_us) AS end_us,
    count(*) AS requests,
    count_if(expired) AS expired,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY bytes) AS bytes,
    sum(bytes) AS total_bytes,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS p50_ms,
    sum(wait_ms) AS wait_ms,
    max_by(operation_id, struct(wait_ms, operation_id)) AS longest_id
FROM produce_sizes
WHERE bytes >= :large_bytes
GROUP BY client_id, CAST(floor(start_us / 1000000) AS BIGINT)
ORDER BY client_id, time_us
