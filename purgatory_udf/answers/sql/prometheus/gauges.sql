-- The last reading of each purgatory's gauges, and the watches that purges removed.
--
-- Reads:  metrics_purgatories

SELECT broker, purgatory,
    max_by(purgatory_size_last, window_start) AS size,
    max_by(num_delayed_last, window_start) AS delayed,
    max_by(dead_watches_last, window_start) AS dead,
    sum(purged) AS purged
FROM metrics_purgatories
GROUP BY broker, purgatory
ORDER BY broker, purgatory
