-- purgatory_udf/answers/sql/diagnosis/late_joins.sql
-- Waits of rebalances for a single member that were long.
--
-- Reads:       blame, waited, events
-- Parameters:  :slow_ms, the least wait in milliseconds that counts

SELECT b.operation_id, b.group AS group, b.member_id AS member, m.client_id, unix_micros(b.started_at) AS start_us,
    unix_micros(b.ended_at) AS end_us, b.wait_ms, 1 AS operations, CASE WHEN w.expired THEN 1 ELSE 0 END AS expired
FROM blame b
JOIN waited w ON w.operation_id = b.operation_id
LEFT JOIN (
    SELECT e.member_id, max(e.client_id) AS client_id FROM events e WHERE e.member_id IS NOT NULL GROUP BY e.member_id
) m ON m.member_id = b.member_id
WHERE b.cause = 'member_joining' AND b.kind = 'join' AND b.wait_ms >= :slow_ms AND NOT w.after_end
ORDER BY start_us, b.operation_id
