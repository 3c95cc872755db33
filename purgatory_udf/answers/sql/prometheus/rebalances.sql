-- The number of rebalances of each group by their last state.
--
-- Reads:  metrics_rebalances

SELECT r.broker, r.group AS group, ended_as, count(*) AS rebalances
FROM metrics_rebalances r
GROUP BY r.broker, r.group, ended_as
ORDER BY r.broker, r.group, ended_as
