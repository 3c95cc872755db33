-- purgatory_udf/answers/sql/views/produce_sizes.sql
-- Produces with acks=all that ended: the timeout, size and wait of each.
--
-- Reads:    ended, events
-- Columns:  operation_id, client_id, timeout_ms, bytes, wait_ms, expired, start_us, end_us

SELECT e.operation_id, e.client_id, q.timeout_ms, list_total(fields(partitions, 'bytes')) AS bytes, e.wait_ms, e.expired,
    unix_micros(e.started_at) AS start_us, unix_micros(e.ended_at) AS end_us
FROM (SELECT * FROM ended WHERE kind = 'produce') e
JOIN (SELECT seq, timeout_ms FROM events WHERE type = 'produce' AND acks = -1) q ON q.seq = e.operation_id
