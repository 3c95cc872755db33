-- The partitions that some operations were watched on.
--
-- Reads:  watches, wanted

SELECT w.operation_id, w.topic, w.partition
FROM watches w
JOIN wanted ON wanted.operation_id = w.operation_id
ORDER BY w.operation_id, w.topic, w.partition
