-- The maximum of each purgatory's gauges, and the number of watches that purges removed.
--
-- Reads:  purgatory_gauges

SELECT purgatory, broker, max(watched) AS size, max(delayed) AS delayed, sum(purged) AS purged
FROM purgatory_gauges
GROUP BY purgatory, broker
ORDER BY purgatory, broker
