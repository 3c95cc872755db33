-- The number of rebalances of each group by their last state, of classic and of consumer groups (KIP-848).
--
-- Reads:  metrics_rebalances, consumer_rebalances

SELECT a.broker, a.group_id AS group, a.ended_as, count(*) AS rebalances
FROM (
    SELECT r.broker, r.group AS group_id, ended_as FROM metrics_rebalances r
    UNION ALL
    SELECT r.broker, r.group, ended_as FROM consumer_rebalances r
) a
GROUP BY a.broker, a.group_id, a.ended_as
ORDER BY a.broker, a.group_id, a.ended_as
