-- The deliveries of one record to a share group.
--
-- Reads:       share_deliveries
-- Parameters:  :group, :topic, :partition, :offset

SELECT d.operation_id, d.topic, d.partition, d.first_offset, d.last_offset, d.delivery_count, d.client_id, d.member_id,
    unix_micros(d.acquired_at) AS acquired_us, d.held_ms, d.ended_by, d.state
FROM share_deliveries d
WHERE d.group = :group AND d.topic = :topic AND d.partition = :partition
    AND d.first_offset <= :offset AND d.last_offset >= :offset
ORDER BY d.acquired_at, d.delivery_count
