-- Records by how their deliveries to share groups ended, by share partition.
--
-- Reads:  metrics_deliveries

SELECT broker, d.group AS group, topic, partition, sum(lock_expired) AS lock_expired, sum(accepted) AS accepted,
    sum(released) AS released, sum(rejected) AS rejected
FROM metrics_deliveries d
GROUP BY broker, d.group, topic, partition
ORDER BY broker, d.group, topic, partition
