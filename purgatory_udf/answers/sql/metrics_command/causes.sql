-- The causes of each kind of operation, the most frequent first.
--
-- Reads:  metrics_causes

SELECT kind, expired, watched, completed_by, operations, waited_ms, p50_ms, p99_ms, max_ms
FROM metrics_causes
ORDER BY kind, expired, operations DESC, completed_by
