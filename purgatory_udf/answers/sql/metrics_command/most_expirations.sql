-- The clients, groups, topics or other values of dimensions with the most failures, and after
-- them, with the most expirations.
--
-- Reads:       metrics_waits
-- Parameters:  :top, maximum number of rows

SELECT w.by AS by, value, kind, expired, failed, expired_max_ms
FROM metrics_waits w
WHERE expired > 0 AND w.by <> 'all'
ORDER BY failed DESC, expired DESC, waited_ms DESC, w.by, value
LIMIT :top
