-- The number and the waits of operations by kind and cause.
--
-- Reads:  ended

SELECT kind, expired, watched, completed_by,
    count(*) AS operations,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS median_ms,
    max(wait_ms) AS longest_ms
FROM ended
GROUP BY kind, expired, watched, completed_by
ORDER BY kind, expired, operations DESC, completed_by, watched
