-- Invariants of operation ids: each operation of the trace ended at most once, and no id occurs twice. A run records the
-- number of operations of the trace without an outcome.
--
-- Reads:    completions, expirations, cancellations, requests
-- Columns:  operation_id, and whether each invariant holds for it; null if the invariant is not about this operation

WITH rows_of_each AS (
    -- Only operations that start with a request are `answered`; operations of groups do not.
    SELECT operation_id, sum(requested) AS requests, sum(answered) AS answers, sum(ended) AS ends
    FROM (
        SELECT operation_id, 1 AS requested, 0 AS answered, 0 AS ended FROM requests
        UNION ALL
        SELECT operation_id, 0,
            CASE
                WHEN kind IN (
                    'produce', 'fetch', 'remote_fetch', 'share_fetch', 'delete_records', 'create_topics', 'list_offsets'
                )
                THEN 1 ELSE 0
            END, 1
        FROM (
            SELECT operation_id, kind FROM completions
            UNION ALL SELECT operation_id, kind FROM expirations
            UNION ALL SELECT operation_id, kind FROM cancellations
        ) ends
    ) rows
    GROUP BY operation_id
)
SELECT operation_id,
    CASE WHEN requests > 0 OR answers > 0 THEN requests = 1 AND answers <= 1 END AS ended_once,
    CASE WHEN ends > 0 THEN ends = 1 END AS is_unique,
    CASE WHEN requests = 1 THEN ends > 0 END AS has_ended
FROM rows_of_each
