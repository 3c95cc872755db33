-- purgatory_udf/answers/sql/diagnosis/normal.sql
-- The usual length of each kind of wait in this trace: its median and 95th percentile in milliseconds.
--
-- Reads:  blame

SELECT kind, cause, broker, replica, count(*) AS parts,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS p50_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY wait_ms) AS p95_ms
FROM blame
GROUP BY kind, cause, broker, replica
