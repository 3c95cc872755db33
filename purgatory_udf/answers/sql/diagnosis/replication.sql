-- purgatory_udf/answers/sql/diagnosis/replication.sql
-- The waits of produces for each follower at each leader, by second.
--
-- Reads:       replica_waits
-- Parameters:  :last_us, the end of the trace in microseconds since the epoch; waits that end behind it are excluded
-- Columns:     broker (the leader), replica, second; parts, p50_ms, p90_ms, p95_ms, wait_ms (their sum)

SELECT broker, replica, CAST(floor(start_us / 1000000) AS BIGINT) AS second,
    count(*) AS parts,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS p50_ms,
    percentile_disc(0.9) WITHIN GROUP (ORDER BY wait_ms) AS p90_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY wait_ms) AS p95_ms,
    sum(wait_ms) AS wait_ms
FROM replica_waits
WHERE kind = 'produce' AND cause = 'follower_behind' AND end_us <= :last_us
GROUP BY broker, replica, CAST(floor(start_us / 1000000) AS BIGINT)
ORDER BY second, broker, replica
