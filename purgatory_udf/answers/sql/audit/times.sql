-- Invariants of the times of ended operations. Deadlines and waits are in whole milliseconds, as Kafka's timer counts.
-- Where a broker stood still at the deadline, the time at which it resumed counts in its place. A followed replay does
-- not know of pauses that were written after its start, so an expiration at the deadline is valid as well.
--
-- Reads:    completions, expirations, cancellations, pauses
-- Columns:  operation_id, and whether each invariant holds for it; null if the invariant is not about this operation

WITH ends AS (
    SELECT operation_id, broker, started_at, completed_at AS ended_at, deadline, wait_ms, false AS expired
    FROM completions
    UNION ALL
    SELECT operation_id, broker, started_at, cancelled_at, deadline, wait_ms, false FROM cancellations
    UNION ALL
    SELECT operation_id, broker, started_at, expired_at, deadline, wait_ms, true FROM expirations
),
timed AS (
    SELECT e.*, coalesce(p.resumed_ms * 1000, unix_micros(e.deadline)) AS fires_us
    FROM ends e
    LEFT JOIN pauses p
        ON p.broker = e.broker AND p.paused_ms < unix_millis(e.deadline) AND p.resumed_ms > unix_millis(e.deadline)
)
SELECT operation_id,
    CASE WHEN NOT expired THEN coalesce(unix_millis(ended_at) * 1000 <= fires_us, false) END AS by_deadline,
    CASE WHEN expired THEN coalesce(unix_micros(ended_at) IN (fires_us, unix_micros(deadline)), false) END AS at_deadline,
    coalesce(wait_ms = unix_millis(ended_at) - unix_millis(started_at), false) AS waited_until_end
FROM timed
