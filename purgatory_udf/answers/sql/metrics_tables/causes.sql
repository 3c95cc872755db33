-- The number and the waits of operations by kind and cause.
--
-- Quantiles are computed as in metrics/waits.
--
-- Reads:  wait_counts

WITH counts AS (
    SELECT kind, expired, watched, completed_by, wait_ms, CAST(sum(operations) AS BIGINT) AS operations
    FROM wait_counts
    GROUP BY kind, expired, watched, completed_by, wait_ms
),
ranked AS (
    SELECT c.*,
        sum(operations) OVER (PARTITION BY kind, expired, watched, completed_by ORDER BY wait_ms) AS up_to,
        sum(operations) OVER (PARTITION BY kind, expired, watched, completed_by) - 1 AS last_place
    FROM counts c
),
neighbours AS (
    SELECT kind, expired, watched, completed_by,
        sum(operations) AS operations,
        sum(operations * wait_ms) AS waited_ms,
        max(last_place) AS last_place,
        min(wait_ms) FILTER (WHERE up_to > floor(50e-2 * last_place)) AS p50_below,
        min(wait_ms) FILTER (WHERE up_to > ceil(50e-2 * last_place)) AS p50_above,
        min(wait_ms) FILTER (WHERE up_to > floor(95e-2 * last_place)) AS p95_below,
        min(wait_ms) FILTER (WHERE up_to > ceil(95e-2 * last_place)) AS p95_above,
        min(wait_ms) FILTER (WHERE up_to > floor(99e-2 * last_place)) AS p99_below,
        min(wait_ms) FILTER (WHERE up_to > ceil(99e-2 * last_place)) AS p99_above,
        max(wait_ms) AS max_ms
    FROM ranked
    GROUP BY kind, expired, watched, completed_by
)
SELECT kind, expired, watched, completed_by, operations, waited_ms,
    round(p50_below + (p50_above - p50_below) * (50e-2 * last_place - floor(50e-2 * last_place)), 2) AS p50_ms,
    round(p95_below + (p95_above - p95_below) * (95e-2 * last_place - floor(95e-2 * last_place)), 2) AS p95_ms,
    round(p99_below + (p99_above - p99_below) * (99e-2 * last_place - floor(99e-2 * last_place)), 2) AS p99_ms,
    max_ms
FROM neighbours
ORDER BY kind, expired, completed_by, watched
