-- The values of a dimension (clients, groups, topics, …) with the longest total waits.
--
-- Reads:       metrics_waits
-- Parameters:  :by, the dimension
--              :top, maximum number of rows

SELECT value, kind, operations, waited, waited_share, expired, failed, waited_ms, p50_ms, p95_ms, p99_ms, max_ms
FROM metrics_waits w
WHERE w.by = :by
ORDER BY waited_ms DESC, kind, value
LIMIT :top
