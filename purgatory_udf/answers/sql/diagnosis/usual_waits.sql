-- purgatory_udf/answers/sql/diagnosis/usual_waits.sql
-- The usual length of each kind of wait in this trace: its 95th percentile in milliseconds. Waits for data and for timers
-- are excluded, because clients set them.
--
-- Reads:  blame

SELECT kind, cause, broker, replica, count(*) AS parts,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY wait_ms) AS p95_ms
FROM blame
WHERE cause NOT IN ('no_data', 'below_min_bytes', 'initial_delay', 'member_silent')
GROUP BY kind, cause, broker, replica
