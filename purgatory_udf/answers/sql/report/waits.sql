-- The number of operations that waited from `low` to `high` milliseconds, by kind and cause; kinds with the most waits
-- come first.
--
-- Reads:  wait_ranges

SELECT kind, cause, low, high, operations, sum(operations) OVER (PARTITION BY kind) AS of_kind
FROM wait_ranges
ORDER BY of_kind DESC, kind, low, cause
