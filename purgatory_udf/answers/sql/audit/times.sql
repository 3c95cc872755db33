-- Invariants of the times of ended operations. Deadlines and waits are in whole milliseconds, as Kafka's timer counts.
--
-- Reads:    completions, expirations, cancellations
-- Columns:  invariant, operation_id, and whether it `holds` for this operation

WITH answered AS (
    SELECT operation_id, started_at, completed_at AS ended_at, deadline, wait_ms FROM completions
    UNION ALL
    SELECT operation_id, started_at, cancelled_at, deadline, wait_ms FROM cancellations
)
SELECT 'completed or cancelled by the deadline' AS invariant, operation_id,
    unix_millis(ended_at) <= unix_millis(deadline) AS holds
FROM answered
UNION ALL
SELECT 'expired at the deadline', operation_id, expired_at = deadline FROM expirations
UNION ALL
SELECT 'wait_ms is the time from start to end', operation_id, wait_ms = unix_millis(ended_at) - unix_millis(started_at) FROM answered
UNION ALL
SELECT 'wait_ms is the time from start to end', operation_id, wait_ms = unix_millis(expired_at) - unix_millis(started_at)
FROM expirations
