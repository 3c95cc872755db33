-- Invariant of watches: each belongs to an operation of the trace and is removed by its deadline, or when its broker
-- resumes after that. Operations of groups are excluded, because they do not have the id of an event.
--
-- Reads:    watches, requests, pauses
-- Columns:  operation_id, and whether the invariant holds for this watch

SELECT w.operation_id,
    r.operation_id IS NOT NULL
        AND coalesce(unix_millis(w.ended_at) <= coalesce(p.resumed_ms, unix_millis(w.deadline)), false) AS is_valid
FROM watches w
LEFT JOIN requests r ON r.operation_id = w.operation_id
LEFT JOIN pauses p
    ON p.broker = w.broker AND p.paused_ms < unix_millis(w.deadline) AND p.resumed_ms > unix_millis(w.deadline)
WHERE w.kind IN ('produce', 'fetch', 'remote_fetch', 'delete_records', 'create_topics', 'list_offsets')
