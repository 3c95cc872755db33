-- The number of ended operations by kind, broker and end.
--
-- Reads:  metrics_operations

SELECT kind, broker, sum(on_arrival) AS on_arrival, sum(after_a_wait) AS after_a_wait, sum(expired) AS expired
FROM metrics_operations
GROUP BY kind, broker
ORDER BY kind, broker
