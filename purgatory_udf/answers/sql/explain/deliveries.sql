-- The deliveries of the share fetches in `wanted`, and earlier deliveries of the same records.
--
-- Reads:    share_deliveries, wanted
-- Columns:  asked, the share fetch in `wanted`; the others as in share_deliveries

WITH asked AS (
    SELECT s.operation_id, s.broker, s.group AS group_id, s.topic, s.partition, s.first_offset, s.last_offset, s.acquired_at
    FROM share_deliveries s
    JOIN wanted w ON w.operation_id = s.operation_id
)
SELECT DISTINCT a.operation_id AS asked, d.operation_id, d.topic, d.partition, d.first_offset, d.last_offset,
    d.delivery_count, d.client_id, d.member_id, unix_micros(d.acquired_at) AS acquired_us, d.held_ms, d.ended_by, d.state
FROM asked a
JOIN share_deliveries d ON d.group = a.group_id AND d.topic = a.topic AND d.partition = a.partition
WHERE d.first_offset <= a.last_offset AND d.last_offset >= a.first_offset AND d.acquired_at <= a.acquired_at
ORDER BY asked, acquired_us, topic, partition, first_offset
