-- The time of the last event of the trace, in microseconds since the epoch; null without events.
--
-- Reads:    events
-- Columns:  time_us

SELECT max(time_us) AS time_us FROM events
