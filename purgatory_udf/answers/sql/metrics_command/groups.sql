-- The groups that were not stable for the longest time.
--
-- Reads:       metrics_groups
-- Parameters:  :top, maximum number of rows

SELECT g.broker, g.group AS group, protocol, rebalances, to_stable_ms / nullif(stabilized, 0) AS mean_to_stable_ms,
    max_to_stable_ms, sessions_lost, rebalance_timeouts, held_back, held_back_ms
FROM metrics_groups g
ORDER BY to_stable_ms DESC, g.broker, g.group, protocol
LIMIT :top
