-- The longest rebalances; rebalances after the end of the trace come last.
--
-- Reads:       metrics_rebalances
-- Parameters:  :top, maximum number of rows

SELECT r.broker, r.group AS group, generation, started_at, length_ms, reason, joined_because, ended_as, last_to_join,
    missing, after_end
FROM metrics_rebalances r
ORDER BY after_end, length_ms DESC NULLS LAST, r.broker, r.group, started_at
LIMIT :top
