-- purgatory_udf/answers/sql/diagnosis/replication.sql
-- The waits of produces for each follower at each leader, by second.
--
-- Reads:       blame
-- Parameters:  :last_us, the end of the trace in microseconds since the epoch; waits that end behind it are excluded
-- Columns:     broker (the leader), replica, second; parts, p50_ms, p90_ms, p95_ms, wait_ms (their sum)

SELECT broker, replica, CAST(floor(unix_micros(started_at) / 1000000) AS BIGINT) AS second,
    count(*) AS parts,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS p50_ms,
    percentile_disc(0.9) WITHIN GROUP (ORDER BY wait_ms) AS p90_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY wait_ms) AS p95_ms,
    sum(wait_ms) AS wait_ms
FROM blame
WHERE kind = 'produce' AND cause = 'follower_behind' AND unix_micros(ended_at) <= :last_us
GROUP BY broker, replica, CAST(floor(unix_micros(started_at) / 1000000) AS BIGINT)
ORDER BY second, broker, replica
