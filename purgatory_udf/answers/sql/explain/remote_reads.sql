-- When the reads or lookups in remote storage ended that the operations in `places` began, by partition. A read that ends
-- after its operation is included.
--
-- Reads:    partition_events, places, ended
-- Columns:  operation_id, topic, partition, ended_us

SELECT p.operation_id, p.topic, p.partition, min(t.time_us) AS ended_us
FROM places p
JOIN ended e ON e.operation_id = p.operation_id
JOIN partition_events t
    ON t.broker = p.broker AND t.topic = p.topic AND t.partition = p.partition AND t.request_id = e.request_id
WHERE t.what = CASE e.kind WHEN 'remote_fetch' THEN 'remote_read' ELSE 'remote_lookup' END AND t.time_us >= p.started_us
    AND e.kind IN ('remote_fetch', 'list_offsets')
GROUP BY p.operation_id, p.topic, p.partition
