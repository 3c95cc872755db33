-- purgatory_udf/answers/sql/diagnosis/usual_remote_wait.sql
-- The usual wait for remote storage: by broker, the median of the fetches that did not expire, in milliseconds.
--
-- Reads:    waited
-- Columns:  broker, p50_ms (null if all expired)

SELECT broker, percentile_disc(0.5) WITHIN GROUP (ORDER BY CASE WHEN NOT expired THEN wait_ms END) AS p50_ms
FROM waited
WHERE kind = 'remote_fetch' AND NOT after_end
GROUP BY broker
