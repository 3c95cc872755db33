-- purgatory_udf/answers/sql/diagnosis/stops.sql
-- The times at which a broker's process ended, and its next request after each, or null.
--
-- Reads:  events

WITH stops AS (
    SELECT DISTINCT coalesce(e.broker, 0) AS broker, e.time_us FROM events e
    WHERE e.type = 'partition' AND e.change = 'stopped'
),
requests AS (
    SELECT coalesce(e.broker, 0) AS broker, e.time_us FROM events e WHERE e.type IN ('produce', 'fetch')
)
SELECT s.broker, s.time_us, min(r.time_us) AS next_us
FROM stops s
LEFT JOIN requests r ON r.broker = s.broker AND r.time_us > s.time_us
GROUP BY s.broker, s.time_us
ORDER BY s.time_us, s.broker
