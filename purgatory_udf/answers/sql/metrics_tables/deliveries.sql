-- Deliveries of records to share groups, by share partition and delivery count, in records.
--
-- Reads:  share_deliveries

WITH deliveries AS (
    SELECT d.broker, d.group AS group_id, d.topic, d.partition, d.delivery_count, d.ended_by, d.state, d.held_ms,
        d.last_offset - d.first_offset + 1 AS records
    FROM share_deliveries d
)
SELECT broker, group_id AS group, topic, partition, delivery_count, sum(records) AS records,
    sum(CASE WHEN ended_by = 'accepted' THEN records ELSE 0 END) AS accepted,
    sum(CASE WHEN ended_by = 'released' THEN records ELSE 0 END) AS released,
    sum(CASE WHEN ended_by = 'rejected' THEN records ELSE 0 END) AS rejected,
    sum(CASE WHEN ended_by = 'lock_expired' THEN records ELSE 0 END) AS lock_expired,
    sum(CASE WHEN ended_by = 'session_ended' THEN records ELSE 0 END) AS session_ended,
    sum(CASE WHEN state IN ('ARCHIVING', 'ARCHIVED') AND ended_by NOT IN ('rejected', 'gap') THEN records ELSE 0 END)
        AS archived,
    sum(records * held_ms) AS held_ms, max(held_ms) AS max_held_ms
FROM deliveries
GROUP BY broker, group_id, topic, partition, delivery_count
ORDER BY broker, group_id, topic, partition, delivery_count
