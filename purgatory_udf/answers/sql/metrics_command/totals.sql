-- The starts of the first and the last window of `metrics/operations`, and the number of operations that ended after
-- the trace.
--
-- Reads:  metrics_operations

SELECT min(window_start) AS first, max(window_start) AS last, sum(after_end) AS after_end FROM metrics_operations
