-- purgatory_udf/answers/sql/diagnosis/lost_sessions.sql
-- Sessions that expired before the end of the trace, with their member.
--
-- Reads:    ended, heartbeat_members, events
-- Columns:  operation_id, broker (the coordinator), group, member, client_id, start_us (its last sign of life), end_us

SELECT e.operation_id, e.broker, h.group AS group, h.member AS member, coalesce(e.client_id, q.client_id) AS client_id,
    unix_micros(e.started_at) AS start_us, unix_micros(e.ended_at) AS end_us
FROM ended e
LEFT JOIN heartbeat_members h ON h.operation_id = e.operation_id
LEFT JOIN events q ON q.seq = e.operation_id
WHERE e.kind IN ('heartbeat', 'session') AND e.expired AND NOT e.after_end
ORDER BY end_us, e.operation_id
