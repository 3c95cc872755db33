-- The partitions on which the operations in `wanted` were watched.
--
-- Reads:  watches, wanted

SELECT w.operation_id, w.topic, w.partition
FROM watches w
JOIN wanted ON wanted.operation_id = w.operation_id
ORDER BY w.operation_id, w.topic, w.partition
