-- The maximum of each gauge in each time bin, for the largest purgatories.
--
-- Reads:       metrics_purgatories
-- Parameters:  :bin_ms, width of a bin in milliseconds
--              :most, maximum number of purgatories
-- Columns:     t, start of the bin in milliseconds since the epoch; purgatory, purged, gauge, and `most`, the reading;
--              fullest, the purgatory's maximum size

WITH binned AS (
    SELECT unix_millis(window_start) - pmod(unix_millis(window_start), :bin_ms) AS t,
        purgatory || ' at broker ' || CAST(broker AS STRING) AS name,
        max(purgatory_size_max) AS size, max(num_delayed_max) AS delayed, max(dead_watches_max) AS dead,
        sum(purged) AS purged
    FROM metrics_purgatories
    GROUP BY t, name
),
fullest AS (
    SELECT name, max(size) AS fullest FROM binned GROUP BY name ORDER BY fullest DESC, name LIMIT :most
),
long AS (
    SELECT t, name, purged, 'PurgatorySize' AS gauge, size AS most FROM binned
    UNION ALL SELECT t, name, purged, 'NumDelayedOperations', delayed FROM binned
    UNION ALL SELECT t, name, purged, 'dead entries', dead FROM binned
)
SELECT l.t, l.name AS purgatory, l.purged, f.fullest, l.gauge, l.most
FROM long l
JOIN fullest f ON f.name = l.name
WHERE l.most IS NOT NULL
ORDER BY f.fullest DESC, l.name, l.gauge, l.t
