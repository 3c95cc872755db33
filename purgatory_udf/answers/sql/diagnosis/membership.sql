-- purgatory_udf/answers/sql/diagnosis/membership.sql
-- The joins and leaves of group members in time order.
--
-- Reads:  group_requests, events

SELECT g.broker, g.group AS group, g.type, g.time_us, g.seq, g.member_id AS member, g.client_id
FROM group_requests g
WHERE g.type IN ('join_group', 'leave_group')
UNION ALL
-- Members of consumer groups (KIP-848) join with epoch 0, and leave with -1 or, static ones, -2.
SELECT coalesce(e.broker, 0) AS broker, e.group AS group,
    CASE WHEN e.member_epoch = 0 THEN 'join_group' ELSE 'leave_group' END AS type, e.time_us, e.seq,
    e.member_id AS member, e.client_id
FROM events e
WHERE e.type = 'consumer_group_heartbeat' AND e.member_epoch <= 0
ORDER BY time_us, seq
