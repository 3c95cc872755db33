-- The number and the waits of operations by kind and cause.
--
-- Quantiles are exact. They are interpolated between waits of whole milliseconds and rounded to the hundredth, because
-- the last digit of the interpolation differs between engines.
--
-- Reads:  ended

SELECT kind, expired, watched, completed_by,
    count(*) AS operations,
    round(percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_ms), 2) AS p50_ms,
    round(percentile_cont(0.95) WITHIN GROUP (ORDER BY wait_ms), 2) AS p95_ms,
    round(percentile_cont(0.99) WITHIN GROUP (ORDER BY wait_ms), 2) AS p99_ms,
    max(wait_ms) AS max_ms
FROM ended
GROUP BY kind, expired, watched, completed_by
ORDER BY kind, expired, completed_by, watched
