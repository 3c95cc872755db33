-- The expired operations of a client, failures first, in the order of their ends.
--
-- Reads:       ended
-- Parameters:  :client
--              :top, maximum number of rows

SELECT operation_id
FROM ended
WHERE client_id = :client AND expired
ORDER BY failed DESC, ended_at, operation_id
LIMIT :top
