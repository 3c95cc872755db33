-- The outcomes of the operations in `wanted`; times in microseconds since the epoch.
--
-- Reads:  ended, cancelled, wanted

SELECT e.*, unix_micros(started_at) AS started_us, unix_micros(ended_at) AS ended_us, unix_micros(deadline) AS deadline_us
FROM (SELECT * FROM ended UNION ALL SELECT * FROM cancelled) e
JOIN wanted w ON w.operation_id = e.operation_id
