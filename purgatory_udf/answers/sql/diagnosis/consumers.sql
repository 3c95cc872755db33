-- purgatory_udf/answers/sql/diagnosis/consumers.sql
-- Consumers' fetches by client and settings: how many expired although there were data, and how much there was.
--
-- Reads:    events, ended
-- Columns:  client_id, min_bytes, max_wait_ms; fetches (that waited), expired; short (expired with some data), bytes (the
--           most that was readable at an expiration), wait_ms (sum of the short ones), start_us, end_us

SELECT e.client_id, q.min_bytes, q.max_wait_ms,
    count(*) AS fetches,
    count_if(e.expired) AS expired,
    count_if(e.expired AND e.bytes > 0) AS short,
    max(CASE WHEN e.expired THEN e.bytes END) AS bytes,
    sum(CASE WHEN e.expired THEN e.wait_ms ELSE 0 END) AS wait_ms,
    min(unix_micros(e.started_at)) AS start_us,
    max(unix_micros(e.ended_at)) AS end_us,
    max_by(e.operation_id, CASE WHEN e.expired THEN struct(e.wait_ms, e.operation_id) END) AS longest_id
FROM ended e
JOIN events q ON q.seq = e.operation_id
WHERE e.kind = 'fetch' AND e.watched AND q.replica_id < 0 AND q.min_bytes > 1 AND NOT e.after_end
GROUP BY e.client_id, q.min_bytes, q.max_wait_ms
