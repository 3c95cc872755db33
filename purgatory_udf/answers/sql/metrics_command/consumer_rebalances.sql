-- The longest rebalances of consumer groups (KIP-848); rebalances after the end of the trace come last.
--
-- Reads:       consumer_rebalances
-- Parameters:  :top, maximum number of rows

SELECT r.broker, r.group AS group, generation, started_at, length_ms, reason, ended_as, missing, after_end
FROM consumer_rebalances r
ORDER BY after_end, length_ms DESC NULLS LAST, r.broker, r.group, started_at
LIMIT :top
