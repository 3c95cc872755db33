-- Rows of the table `fidelity`: operations whose id is that of their event.
--
-- The broker answers what expired when its reaper gets to it, some tenths of a millisecond after the end of the timer's
-- delay; the replay ends it at its deadline. So where both sides expired, `difference_ms` is counted from the broker's
-- median.
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
