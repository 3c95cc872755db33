-- Recorded waits next to the replayed ones, by kind and broker; `late` operations waited longer than their deadline
-- allowed; `shown` of these have about the recorded wait in the replay as well, because it knows of the broker's pause.
--
-- Reads:       operation_pairs, ended
-- Parameters:  :late_ms, milliseconds after the deadline up to which an operation is not late

WITH compared AS (
    SELECT p.kind, p.broker, p.recorded_ms, p.replayed_ms,
        p.recorded_ms - (unix_micros(e.deadline) - unix_micros(e.started_at)) / 1e3 AS overdue_ms
    FROM operation_pairs p
    JOIN ended e ON e.operation_id = p.operation_id
)
SELECT kind, broker, count(*) AS operations,
    sum(recorded_ms) AS recorded_ms, sum(replayed_ms) AS replayed_ms,
    max(recorded_ms) AS recorded_max_ms, max(replayed_ms) AS replayed_max_ms,
    count_if(overdue_ms > :late_ms) AS late,
    count_if(overdue_ms > :late_ms AND recorded_ms - replayed_ms <= :late_ms) AS shown, max(overdue_ms) AS latest_ms
FROM compared
GROUP BY kind, broker
ORDER BY kind, broker
