-- How many operations of each kind ended at each broker, by how they ended.
--
-- Reads:  metrics_operations

SELECT kind, broker, sum(on_arrival) AS on_arrival, sum(after_a_wait) AS after_a_wait, sum(expired) AS expired
FROM metrics_operations
GROUP BY kind, broker
ORDER BY kind, broker
