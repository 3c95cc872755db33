-- The operations with the longest waits.
--
-- Reads:       ended
-- Parameters:  :top, maximum number of rows

SELECT operation_id, request_id, client_id, broker, kind, key, wait_ms, expired, completed_by, trigger
FROM ended
ORDER BY wait_ms DESC, ended_at, operation_id
LIMIT :top
