-- purgatory_udf/answers/sql/diagnosis/membership.sql
-- The joins and leaves of group members in time order.
--
-- Reads:  events

SELECT coalesce(e.broker, 0) AS broker, e.group AS group, e.type, e.time_us, e.seq,
    coalesce(nullif(e.member_id, ''), e.assigned_member_id) AS member, e.client_id
FROM events e
WHERE e.type IN ('join_group', 'leave_group')
ORDER BY e.time_us, e.seq
