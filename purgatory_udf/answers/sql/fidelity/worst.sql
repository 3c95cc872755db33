-- The operations of each kind with the largest differences of waits.
--
-- Reads:       fidelity
-- Parameters:  :of_each, maximum number of operations of a kind

WITH ranked AS (
    SELECT kind, request_id, operation_id, recorded_outcome, recorded_ms, replayed_outcome, replayed_ms,
        row_number() OVER (PARTITION BY kind ORDER BY abs(difference_ms) DESC, operation_id) AS place
    FROM fidelity
    WHERE difference_ms IS NOT NULL
)
SELECT kind, request_id, operation_id, recorded_outcome, recorded_ms, replayed_outcome, replayed_ms
FROM ranked
WHERE place <= :of_each
ORDER BY kind, place
