-- Groups: time without stability, and members that were lost.
--
-- Reads:  metrics_groups

SELECT g.broker, g.group AS group, protocol, to_stable_ms, stabilized, sessions_lost, rebalance_timeouts
FROM metrics_groups g
ORDER BY g.broker, g.group, protocol
