-- Starts and waits of single operations: every operation, or a random sample that is the same in every run.
--
-- Reads:       ended
-- Parameters:  :most, maximum number of operations
-- Columns:     kind; began, the start in milliseconds since the epoch; wait_ms; end

SELECT kind, unix_millis(ended_at) - wait_ms AS began, wait_ms,
    CASE WHEN expired THEN 'expired' WHEN watched THEN 'completed after a wait' ELSE 'completed on arrival' END AS end
FROM ended
ORDER BY md5(CAST(operation_id AS STRING)), operation_id
LIMIT :most
