-- The ended and open operations of the requests whose id ends with a text; the request with exactly this id comes first.
--
-- Reads:       ended, cancelled, events
-- Parameters:  :request_id
--              :top, maximum number of rows

SELECT DISTINCT operation_id, request_id
FROM (
    SELECT operation_id, request_id FROM ended
    UNION ALL SELECT operation_id, request_id FROM cancelled
    -- The end of a read names the request that waits for it, but is no operation.
    UNION ALL SELECT seq, request_id FROM events WHERE type NOT IN ('remote_read', 'remote_lookup')
) named
WHERE right(request_id, length(:request_id)) = :request_id
ORDER BY request_id = :request_id DESC, request_id, operation_id
LIMIT :top
