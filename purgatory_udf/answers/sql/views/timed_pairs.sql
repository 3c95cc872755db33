-- The rows of `operation_pairs` with a `late_ms` that does not depend on the start of the operation within a
-- millisecond.
--
-- A broker's timer counts a timeout from the start of the millisecond in which the operation started. If the phase of
-- its clock is known, `late_ms` is counted from the end of that timeout instead of the operation's deadline.
--
-- Reads:  operation_pairs, timer_phases

WITH started AS (
    SELECT p.*, pmod(unix_micros(p.started_at), 1000) / 1e3 + t.phase_ms AS since_tick_ms
    FROM operation_pairs p
    LEFT JOIN timer_phases t ON t.broker = p.broker
)
SELECT operation_id, broker, kind, request_id, started_at, recorded_outcome, replayed_outcome, recorded_ms, replayed_ms,
    difference_ms, late_ms + coalesce(since_tick_ms - floor(since_tick_ms), 0) AS late_ms, agrees
FROM started
