-- The number of operations with equal waits, by kind and end. There are far fewer rows than operations.
--
-- Reads:  ended

SELECT kind, expired, watched, after_end, completed_by, wait_ms, count(*) AS operations
FROM ended
GROUP BY kind, expired, watched, after_end, completed_by, wait_ms
