-- Operations that completed or expired, in the common columns of both tables.
--
-- Reads:    completions, expirations
-- Columns:  those of completions, with `ended_at` for `completed_at`; `expired`; `after_end` and `fetcher`, which only
--           expirations have; `failed`, whether the expiration is a failure: others end as intended at their deadline,
--           or after the trace

SELECT run_id, operation_id, kind, broker, request_id, client_id, key, started_at, deadline, wait_ms, watched,
    completed_by, trigger, bytes, partitions, answered_bytes,
    completed_at AS ended_at, false AS expired, false AS after_end, CAST(NULL AS STRING) AS fetcher,
    false AS failed
FROM completions
UNION ALL
SELECT run_id, operation_id, kind, broker, request_id, client_id, key, started_at, deadline, wait_ms, watched,
    completed_by, trigger, bytes, partitions, answered_bytes,
    expired_at AS ended_at, true AS expired, after_end, fetcher,
    kind NOT IN ('fetch', 'share_fetch', 'initial_join') AND NOT after_end AS failed
FROM expirations
