-- The times of each broker's first and last request in the log, in microseconds since the epoch.
--
-- Reads:  recorded

SELECT broker, min(unix_micros(started_at)) AS from_us, max(unix_micros(started_at)) AS to_us
FROM recorded
GROUP BY broker
ORDER BY broker
