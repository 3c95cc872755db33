-- purgatory_udf/answers/sql/diagnosis/late_joins.sql
-- Waits of rebalances for a single member that were long: for its join, its sync, or partitions that it had to revoke.
--
-- Reads:       member_waits, waited, events
-- Parameters:  :slow_ms, the least wait in milliseconds that counts

WITH timed AS (
    SELECT m.*, unix_millis(timestamp_micros(met_us)) - unix_millis(timestamp_micros(from_us)) AS wait_ms
    FROM member_waits m
)
SELECT b.operation_id, b.broker, b.kind, CASE WHEN b.kind = 'reconciliation' THEN q.group ELSE b.key END AS group,
    coalesce(b.member_id, q.member_id) AS member, coalesce(m.client_id, b.client_id) AS client_id, b.from_us AS start_us,
    b.met_us AS end_us, b.wait_ms, 1 AS operations, CASE WHEN w.expired THEN 1 ELSE 0 END AS expired
FROM timed b
JOIN waited w ON w.operation_id = b.operation_id
LEFT JOIN (
    SELECT e.member_id, max(e.client_id) AS client_id FROM events e WHERE e.member_id IS NOT NULL GROUP BY e.member_id
) m ON m.member_id = b.member_id
-- The key of a reconciliation is its group and member.
LEFT JOIN (
    SELECT DISTINCT e.group AS group, e.member_id, e.group || '-' || e.member_id AS key
    FROM events e
    WHERE e.type = 'consumer_group_heartbeat'
) q ON q.key = w.key AND b.kind = 'reconciliation'
WHERE b.wait_ms >= :slow_ms AND NOT w.after_end
    -- Members may take their time to revoke partitions, up to the rebalance timeout.
    AND (b.kind <> 'reconciliation' OR w.expired)
ORDER BY start_us, b.operation_id
