-- purgatory_udf/answers/sql/views/heartbeat_members.sql
-- The group and the member of each session, by the request that started it.
--
-- Reads:    events, waited
-- Columns:  operation_id, group, member

SELECT w.operation_id, e.group AS group, coalesce(nullif(e.member_id, ''), e.assigned_member_id, e.client_id) AS member
FROM waited w
JOIN events e ON e.seq = w.operation_id
WHERE w.kind IN ('heartbeat', 'session')
