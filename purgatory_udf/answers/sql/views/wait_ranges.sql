-- The number of operations that waited from `low` to `high` milliseconds, by kind and cause. Each range is twice as
-- wide as the one before; 0 has a separate range, because the timer counts whole milliseconds.
--
-- Reads:  wait_counts

SELECT kind, cause, low, CASE WHEN low = 0 THEN 0 ELSE 2 * low - 1 END AS high, CAST(sum(operations) AS BIGINT) AS operations
FROM (
    SELECT kind, CASE WHEN completed_by = 'timeout' THEN 'expired' ELSE completed_by END AS cause,
        CASE WHEN wait_ms = 0 THEN 0 ELSE CAST(pow(2, floor(log2(wait_ms))) AS BIGINT) END AS low, operations
    FROM wait_counts
    WHERE watched
) ranges
GROUP BY kind, cause, low
