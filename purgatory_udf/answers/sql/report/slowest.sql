-- The completions and expirations of each kind with the longest waits, without expirations after the end of the trace.
-- Failures come first.
--
-- Reads:       ended, wait_counts
-- Parameters:  :of_each, maximum number of completions, and of expirations, of a kind

WITH counts AS (
    SELECT kind, expired, wait_ms, sum(operations) AS operations
    FROM wait_counts
    WHERE watched AND NOT after_end
    GROUP BY kind, expired, wait_ms
),
-- The shortest wait that can be among the longest: only these operations are sorted, which are few.
shortest AS (
    SELECT kind, expired, min(wait_ms) AS wait_ms
    FROM (
        SELECT kind, expired, wait_ms,
            sum(operations) OVER (PARTITION BY kind, expired ORDER BY wait_ms DESC) - operations AS longer
        FROM counts
    ) counted
    WHERE longer < :of_each
    GROUP BY kind, expired
),
ranked AS (
    SELECT e.operation_id, e.kind, e.expired, e.failed,
        row_number() OVER (
            PARTITION BY e.kind, e.expired ORDER BY e.wait_ms DESC, e.ended_at, e.operation_id
        ) AS place
    FROM ended e
    JOIN shortest s ON s.kind = e.kind AND s.expired = e.expired AND e.wait_ms >= s.wait_ms
    WHERE e.watched AND NOT e.after_end
)
SELECT operation_id FROM ranked WHERE place <= :of_each ORDER BY failed DESC, kind, expired DESC, place
