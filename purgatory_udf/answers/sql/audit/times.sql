-- Invariants of the times of ended operations. Deadlines and waits are in whole milliseconds, as Kafka's timer counts.
--
-- Reads:    completions, expirations, cancellations
-- Columns:  operation_id, and whether each invariant holds for it; null if the invariant is not about this operation

WITH ends AS (
    SELECT operation_id, started_at, completed_at AS ended_at, deadline, wait_ms, false AS expired FROM completions
    UNION ALL
    SELECT operation_id, started_at, cancelled_at, deadline, wait_ms, false FROM cancellations
    UNION ALL
    SELECT operation_id, started_at, expired_at, deadline, wait_ms, true FROM expirations
)
SELECT operation_id,
    CASE WHEN NOT expired THEN coalesce(unix_millis(ended_at) <= unix_millis(deadline), false) END AS by_deadline,
    CASE WHEN expired THEN coalesce(ended_at = deadline, false) END AS at_deadline,
    coalesce(wait_ms = unix_millis(ended_at) - unix_millis(started_at), false) AS waited_until_end
FROM ends
