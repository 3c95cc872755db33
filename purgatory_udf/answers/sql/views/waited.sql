-- purgatory_udf/answers/sql/views/waited.sql
-- Operations that were in a purgatory, with their times in microseconds since the epoch.
--
-- Reads:    ended, cancelled
-- Columns:  `after_end` operations expired after the last event of the trace, when every member counts as silent

SELECT operation_id, kind, broker, client_id, key, trigger, completed_by, expired, fetcher,
    coalesce(after_end, false) AS after_end, unix_micros(started_at) AS start_us, unix_micros(ended_at) AS end_us, wait_ms
FROM (SELECT * FROM ended UNION ALL SELECT * FROM cancelled) every
WHERE watched
