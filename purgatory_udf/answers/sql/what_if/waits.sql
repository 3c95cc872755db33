-- The number of operations that waited from `low` to `high` milliseconds, by kind.
--
-- Reads:  wait_ranges

SELECT kind, low, high, sum(operations) AS operations FROM wait_ranges GROUP BY kind, low, high ORDER BY kind, low
