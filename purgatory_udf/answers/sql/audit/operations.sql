-- Invariants of operation ids: each operation of the trace ended at most once, and no id occurs twice. The rows of
-- `open` are the operations of the trace without an outcome; a run records their number.
--
-- Reads:    completions, expirations, cancellations, requests
-- Columns:  invariant, operation_id, and whether it `holds` for this operation

WITH rows_of_each AS (
    -- Only operations that start with a request are `answered`; operations of groups do not.
    SELECT operation_id, sum(requested) AS requests, sum(answered) AS answers, sum(ended) AS ends
    FROM (
        SELECT operation_id, 1 AS requested, 0 AS answered, 0 AS ended FROM requests
        UNION ALL
        SELECT operation_id, 0,
            CASE WHEN kind IN ('produce', 'fetch', 'delete_records', 'create_topics') THEN 1 ELSE 0 END, 1
        FROM (
            SELECT operation_id, kind FROM completions
            UNION ALL SELECT operation_id, kind FROM expirations
            UNION ALL SELECT operation_id, kind FROM cancellations
        ) ends
    ) rows
    GROUP BY operation_id
)
SELECT 'each operation of the trace ended at most once' AS invariant, operation_id,
    requests = 1 AND answers <= 1 AS holds
FROM rows_of_each
WHERE requests > 0 OR answers > 0
UNION ALL
SELECT 'operation ids are unique', operation_id, ends = 1 FROM rows_of_each WHERE ends > 0
UNION ALL
SELECT 'open', operation_id, false FROM rows_of_each WHERE requests = 1 AND ends = 0
