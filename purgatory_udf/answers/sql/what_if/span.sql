-- The end times of the first and the last operation, in milliseconds since the epoch.
--
-- Reads:  ended

SELECT min(unix_millis(ended_at)) AS first_ms, max(unix_millis(ended_at)) AS last_ms FROM ended
