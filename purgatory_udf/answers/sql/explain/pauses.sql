-- The times at which brokers stood still, in order.
--
-- Reads:  pauses

SELECT broker, paused_us, resumed_us
FROM pauses
ORDER BY paused_us, broker
