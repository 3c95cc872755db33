-- purgatory_udf/answers/sql/views/group_requests.sql
-- The join, sync and leave requests of groups, with the member that sent each.
--
-- Reads:    events
-- Columns:  broker, group, type, time_us, seq, client_id; member_id, null for the first join of a new member; member, its
--           client then

SELECT coalesce(e.broker, 0) AS broker, e.group AS group, e.type, e.time_us, e.seq,
    coalesce(nullif(e.member_id, ''), e.assigned_member_id) AS member_id,
    coalesce(nullif(e.member_id, ''), e.assigned_member_id, e.client_id) AS member, e.client_id
FROM events e
-- With IN, DuckDB would read all columns of all rows first.
WHERE NOT (e.type NOT IN ('join_group', 'sync_group', 'leave_group'))
