-- purgatory_udf/answers/sql/diagnosis/producers.sql
-- Produces with acks=all by client: their timeouts, sizes and waits.
--
-- Reads:    produce_sizes
-- Columns:  client_id; timeout_ms (median), requests, expired, bytes (median of a request), total_bytes, wait_ms (median),
--           start_us, end_us (first and last request)

SELECT client_id,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY timeout_ms) AS timeout_ms,
    count(*) AS requests,
    count_if(expired) AS expired,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY bytes) AS bytes,
    sum(bytes) AS total_bytes,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS wait_ms,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY wait_ms) AS p99_ms,
    min(start_us) AS start_us,
    max(end_us) AS end_us
FROM produce_sizes
GROUP BY client_id
