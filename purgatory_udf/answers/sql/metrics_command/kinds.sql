-- The waits of each kind of operation.
--
-- Reads:  metrics_waits

SELECT kind, operations, waited, waited_share, expired, failed, waited_ms, p50_ms, p95_ms, p99_ms, max_ms
FROM metrics_waits w
WHERE w.by = 'all'
ORDER BY kind
