-- Rows of the table `fidelity` for operations with the id of their event.
--
-- The reaper of a broker answers an expired operation some tenths of a millisecond after the end of the timer's delay;
-- the replay ends it at its deadline. So for operations that expired on both sides, the broker's median lateness is
-- subtracted from `difference_ms`.
--
-- Reads:  timed_pairs, disagreement_causes

WITH usual AS (
    SELECT broker, percentile_disc(0.5) WITHIN GROUP (ORDER BY late_ms) AS late_ms
    FROM timed_pairs
    WHERE late_ms IS NOT NULL
    GROUP BY broker
)
SELECT p.operation_id, p.broker, p.kind, p.request_id, p.started_at, p.recorded_outcome, p.replayed_outcome,
    p.recorded_ms, p.replayed_ms,
    CASE WHEN p.late_ms IS NOT NULL THEN p.late_ms - u.late_ms ELSE p.difference_ms END AS difference_ms,
    p.agrees, c.cause
FROM timed_pairs p
LEFT JOIN usual u ON u.broker = p.broker
LEFT JOIN disagreement_causes c ON c.operation_id = p.operation_id
