-- Operations that were waiting when their broker stopped, in the columns of `ended`. They have no response.
--
-- Reads:    cancellations

SELECT run_id, operation_id, kind, broker, request_id, client_id, key, started_at, deadline, wait_ms, watched,
    reason AS completed_by, trigger, CAST(NULL AS BIGINT) AS bytes, partitions, CAST(NULL AS BIGINT) AS answered_bytes,
    cancelled_at AS ended_at, false AS expired, false AS after_end, fetcher,
    false AS failed
FROM cancellations
