-- purgatory_udf/answers/sql/views/heartbeat_members.sql
-- The group and the member of each session, by the request that started it, or by the key of the session.
--
-- Reads:    events, waited
-- Columns:  operation_id, group, member

SELECT w.operation_id, e.group AS group, coalesce(nullif(e.member_id, ''), e.assigned_member_id, e.client_id) AS member
FROM waited w
JOIN events e ON e.seq = w.operation_id
WHERE w.kind IN ('heartbeat', 'session')
UNION ALL
-- Sessions that no request started, such as those of a group that a broker loaded, have negative IDs.
SELECT w.operation_id, max(m.group) AS group, max(m.member) AS member
FROM waited w
JOIN (
    SELECT DISTINCT e.group AS group, coalesce(nullif(e.member_id, ''), e.assigned_member_id) AS member
    FROM events e
    WHERE e.group IS NOT NULL
) m ON w.key = concat(m.group, '-', m.member)
WHERE w.kind IN ('heartbeat', 'session') AND w.operation_id < 0
GROUP BY w.operation_id
