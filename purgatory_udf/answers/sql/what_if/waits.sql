-- How many operations of each kind waited from `low` to `high` milliseconds.
--
-- Reads:  wait_ranges

SELECT kind, low, high, sum(operations) AS operations FROM wait_ranges GROUP BY kind, low, high ORDER BY kind, low
