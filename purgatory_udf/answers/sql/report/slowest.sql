-- The completions and expirations of each kind with the longest waits, without expirations after the end of the trace.
-- Failures come first.
--
-- Reads:       ended
-- Parameters:  :of_each, maximum number of completions, and of expirations, of a kind

WITH ranked AS (
    SELECT operation_id, kind, expired, failed,
        row_number() OVER (PARTITION BY kind, expired ORDER BY wait_ms DESC, ended_at, operation_id) AS place
    FROM ended
    WHERE watched AND NOT after_end
)
SELECT operation_id FROM ranked WHERE place <= :of_each ORDER BY failed DESC, kind, expired DESC, place
