-- The maximum PurgatorySize of each purgatory in each time bin.
--
-- Reads:       purgatory_gauges
-- Parameters:  :bin_ms, width of a bin in milliseconds
-- Columns:     t, start of the bin in milliseconds since the epoch; purgatory (and broker), size

SELECT unix_millis(g.at) - pmod(unix_millis(g.at), :bin_ms) AS t,
    g.purgatory || ' at broker ' || CAST(g.broker AS STRING) AS purgatory, max(g.watched) AS size
FROM purgatory_gauges g
GROUP BY unix_millis(g.at) - pmod(unix_millis(g.at), :bin_ms), g.purgatory, g.broker
ORDER BY purgatory, t
