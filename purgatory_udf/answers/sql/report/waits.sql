-- How many operations waited from `low` to `high` milliseconds, by kind and cause; kinds with most waits first.
--
-- Reads:  wait_ranges

SELECT kind, cause, low, high, operations, sum(operations) OVER (PARTITION BY kind) AS of_kind
FROM wait_ranges
ORDER BY of_kind DESC, kind, low, cause
