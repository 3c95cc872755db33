-- purgatory_udf/answers/sql/views/heartbeat_members.sql
-- The group and the member of each session, by its key, or by the request that started the session if the key does not
-- name one member.
--
-- Reads:    events, waited, member_keys, unnamed_sessions
-- Columns:  operation_id, kind, broker, client_id, start_us, end_us: the session; group, member

WITH requests AS (
    SELECT u.operation_id, e.group AS group_id,
        coalesce(nullif(e.member_id, ''), e.assigned_member_id, e.client_id) AS member
    FROM unnamed_sessions u
    LEFT JOIN (SELECT * FROM events WHERE seq IN (SELECT operation_id FROM unnamed_sessions)) e ON e.seq = u.operation_id
)
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.start_us, w.end_us, m.group_id AS group, m.member
FROM waited w
LEFT JOIN member_keys m ON m.key = w.key
-- With IN, DuckDB would read all columns of all rows first.
WHERE NOT (w.kind NOT IN ('heartbeat', 'session')) AND (m.is_unique OR w.operation_id < 0)
UNION ALL
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.start_us, w.end_us, r.group_id AS group, r.member
FROM requests r
JOIN waited w ON w.operation_id = r.operation_id
