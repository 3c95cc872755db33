-- The heartbeats, joins and syncs that expired before the end of the log.
--
-- Reads:  expirations

SELECT broker, kind, key, unix_micros(expired_at) AS at_us
FROM expirations
WHERE kind IN ('heartbeat', 'join', 'sync') AND NOT after_end
ORDER BY at_us, broker, kind, key
