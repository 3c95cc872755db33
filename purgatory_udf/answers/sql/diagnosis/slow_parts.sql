-- purgatory_udf/answers/sql/diagnosis/slow_parts.sql
-- Waits for a follower or for the minimum in-sync set that are longer than usual, by replica and tenth of a second.
--
-- Reads:       blame
-- Parameters:  :slow_ms, the least wait in milliseconds that counts
-- Columns:     cause, replica, broker (the leader); start_us and end_us, from the first to the last of these waits; parts,
--              wait_ms (their sum)

SELECT cause, replica, broker,
    min(unix_micros(started_at)) AS start_us,
    max(unix_micros(ended_at)) AS end_us,
    count(*) AS parts,
    sum(wait_ms) AS wait_ms
FROM blame
WHERE cause IN ('follower_behind', 'below_min_isr', 'replication_throttled') AND wait_ms >= :slow_ms
GROUP BY cause, replica, broker, CAST(floor(unix_micros(started_at) / 100000) AS BIGINT)
ORDER BY cause, replica, start_us, broker
