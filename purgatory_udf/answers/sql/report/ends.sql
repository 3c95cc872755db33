-- The number of operations that ended in each time bin, by kind and end; kinds with the most operations come first.
--
-- Reads:       metrics_operations
-- Parameters:  :bin_ms, width of a bin in milliseconds
-- Columns:     t, start of the bin in milliseconds since the epoch; kind, end, operations; of_kind, the kind's total

WITH binned AS (
    SELECT unix_millis(window_start) - pmod(unix_millis(window_start), :bin_ms) AS t, kind,
        sum(on_arrival) AS on_arrival, sum(after_a_wait) AS after_a_wait, sum(failed) AS failed,
        sum(expired) AS expired, sum(after_end) AS after_end
    FROM metrics_operations
    GROUP BY t, kind
),
long AS (
    SELECT t, kind, 'completed on arrival' AS end, on_arrival AS operations FROM binned
    UNION ALL SELECT t, kind, 'completed after a wait', after_a_wait FROM binned
    UNION ALL SELECT t, kind, 'failed', failed FROM binned
    UNION ALL SELECT t, kind, 'expired as intended', expired - failed - after_end FROM binned
    UNION ALL SELECT t, kind, 'expired after the trace', after_end FROM binned
)
SELECT t, kind, l.end AS end, operations, sum(operations) OVER (PARTITION BY kind) AS of_kind
FROM long l
WHERE operations > 0
ORDER BY of_kind DESC, kind, t, l.end
