-- When the first and the last window of `metrics/operations` start, and how many operations ended after the trace.
--
-- Reads:  metrics_operations

SELECT min(window_start) AS first, max(window_start) AS last, sum(after_end) AS after_end FROM metrics_operations
