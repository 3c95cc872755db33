-- Recorded and replayed waits of single operations: first operations with different outcomes, then a random sample of
-- the others, which is the same in every run.
--
-- Reads:       fidelity
-- Parameters:  :most, maximum number of operations

SELECT kind, recorded_ms, replayed_ms, agrees, request_id
FROM fidelity
WHERE kind NOT IN ('join_group', 'sync_group', 'heartbeat')
    AND replayed_ms IS NOT NULL AND (recorded_ms > 0 OR replayed_ms > 0)
ORDER BY agrees, md5(CAST(operation_id AS STRING)), operation_id
LIMIT :most
