-- Operations of the request log with the id of their event, and their outcomes in the replay.
--
-- A share fetch is answered when the states of the records that it acknowledges are written, too.
--
-- Reads:    recorded, ended, events
-- Columns:  outcomes are at_once, completed (after a wait), expired, or none (the replay has no outcome).
--           `difference_ms` is the recorded wait minus the replayed one; `late_ms` is the same for operations that
--           expired on both sides, null for others.

WITH written AS (
    SELECT seq, state_write_ms AS ms FROM events WHERE type = 'share_fetch' AND state_write_ms > 0
),
replayed AS (
    SELECT operation_id,
        CASE
            -- The broker answers a fetch without a maximum wait at once, and does not count it as expired.
            WHEN expired AND NOT (kind = 'fetch' AND wait_ms = 0) THEN 'expired'
            WHEN (watched OR w.ms IS NOT NULL) AND NOT expired THEN 'completed'
            ELSE 'at_once'
        END AS outcome,
        -- Deadlines are whole milliseconds, but starts are not. An expired operation has waited for its whole timeout.
        CASE
            WHEN expired THEN CAST(wait_ms AS DOUBLE)
            ELSE greatest((unix_micros(ended_at) - unix_micros(started_at)) / 1e3, coalesce(w.ms, 0))
        END AS waited_ms
    FROM ended
    LEFT JOIN written w ON w.seq = operation_id
)
SELECT r.operation_id, r.broker, r.kind, r.request_id, r.started_at, r.written_at,
    r.recorded_outcome,
    coalesce(e.outcome, 'none') AS replayed_outcome,
    r.recorded_remote_ms AS recorded_ms,
    e.waited_ms AS replayed_ms,
    r.recorded_remote_ms - e.waited_ms AS difference_ms,
    CASE WHEN r.recorded_outcome = 'expired' AND e.outcome = 'expired' THEN r.recorded_remote_ms - e.waited_ms END
        AS late_ms,
    r.recorded_outcome = coalesce(e.outcome, 'none') AS agrees
FROM recorded r
LEFT JOIN replayed e ON e.operation_id = r.operation_id
WHERE r.kind IN (
    'consumer fetch', 'follower fetch', 'produce acks=-1', 'produce acks=1', 'produce acks=0', 'transaction markers',
    'delete_records', 'create_topics', 'remote fetch', 'list_offsets', 'share fetch'
)
