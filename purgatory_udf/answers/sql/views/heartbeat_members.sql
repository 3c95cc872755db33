-- purgatory_udf/answers/sql/views/heartbeat_members.sql
-- The group and the member of each session, by the request that started it, or by the key of the session.
--
-- Reads:    events, waited
-- Columns:  operation_id, kind, broker, client_id, start_us, end_us: the session; group, member

SELECT w.operation_id, w.kind, w.broker, w.client_id, w.start_us, w.end_us, e.group AS group,
    coalesce(nullif(e.member_id, ''), e.assigned_member_id, e.client_id) AS member
FROM waited w
LEFT JOIN events e ON e.seq = w.operation_id
WHERE w.kind IN ('heartbeat', 'session') AND w.operation_id >= 0
UNION ALL
-- Sessions that no request started, such as those of a group that a broker loaded, have negative IDs.
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.start_us, w.end_us, max(m.group_id) AS group,
    max(m.member) AS member
FROM waited w
LEFT JOIN (
    SELECT DISTINCT e.group AS group_id, coalesce(nullif(e.member_id, ''), e.assigned_member_id) AS member
    FROM events e
    WHERE e.group IS NOT NULL
) m ON w.key = concat(m.group_id, '-', m.member)
WHERE w.kind IN ('heartbeat', 'session') AND w.operation_id < 0
GROUP BY w.operation_id, w.kind, w.broker, w.client_id, w.start_us, w.end_us
