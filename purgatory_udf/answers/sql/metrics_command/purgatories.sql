-- The largest purgatories: the maximum of each gauge, and the last window with the maximum size.
--
-- Reads:       metrics_purgatories
-- Parameters:  :top, maximum number of rows

SELECT broker, purgatory,
    max(purgatory_size_max) AS size,
    max_by(window_start, struct(purgatory_size_max, window_start)) AS fullest_at,
    max(num_delayed_max) AS delayed,
    max(dead_watches_max) AS dead,
    max(dead_bytes_max) AS dead_bytes,
    sum(purged) AS purged
FROM metrics_purgatories
GROUP BY broker, purgatory
ORDER BY size DESC, broker, purgatory
LIMIT :top
