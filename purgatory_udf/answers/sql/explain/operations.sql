-- The ended and open operations of a request id.
--
-- Reads:       ended, cancelled, events
-- Parameters:  :request_id
--              :top, maximum number of rows

SELECT DISTINCT operation_id
FROM (
    SELECT operation_id, request_id FROM ended
    UNION ALL SELECT operation_id, request_id FROM cancelled
    -- The end of a read names the request that waits for it, but is no operation.
    UNION ALL SELECT seq, request_id FROM events WHERE type NOT IN ('remote_read', 'remote_lookup')
) named
WHERE request_id = :request_id
ORDER BY operation_id
LIMIT :top
