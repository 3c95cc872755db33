-- purgatory_udf/answers/sql/views/group_requests.sql
-- The join, sync and leave requests of groups, with the member that sent each.
--
-- Reads:    events
-- Columns:  broker, group, type, time_us, seq, member, client_id

SELECT coalesce(e.broker, 0) AS broker, e.group AS group, e.type, e.time_us, e.seq,
    coalesce(nullif(e.member_id, ''), e.assigned_member_id, e.client_id) AS member, e.client_id
FROM events e
WHERE e.type IN ('join_group', 'sync_group', 'leave_group')
