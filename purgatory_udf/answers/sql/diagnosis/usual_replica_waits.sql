-- purgatory_udf/answers/sql/diagnosis/usual_replica_waits.sql
-- The median of each kind of wait for replicas in this trace, in milliseconds.
--
-- Reads:  replica_waits

SELECT kind, cause, broker, replica, percentile_disc(0.5) WITHIN GROUP (ORDER BY wait_ms) AS p50_ms
FROM replica_waits
GROUP BY kind, cause, broker, replica
