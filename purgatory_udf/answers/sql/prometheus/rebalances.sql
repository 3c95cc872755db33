-- How many rebalances each group had, by how they ended.
--
-- Reads:  metrics_rebalances

SELECT r.broker, r.group AS group, ended_as, count(*) AS rebalances
FROM metrics_rebalances r
GROUP BY r.broker, r.group, ended_as
ORDER BY r.broker, r.group, ended_as
