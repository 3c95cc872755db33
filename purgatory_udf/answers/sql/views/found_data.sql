-- purgatory_udf/answers/sql/views/found_data.sql
-- Consumers' waiting fetches for which one record is enough, and which an append at their offset of the partition that
-- ended them gave one: most fetches. The others are in `unsettled_fetches`.
--
-- Reads:    request_parts, waited, appends
-- Columns:  operation_id, broker, client_id, start_us, end_us, replica_id, is_committed: the fetch; topic, partition,
--           fetch_offset; first_us, the time of the append, but not before the fetch started

SELECT w.operation_id, w.broker, w.client_id, w.start_us, w.end_us, p.replica_id, p.is_committed, p.topic, p.partition,
    p.reached AS fetch_offset, greatest(a.first_us, w.start_us) AS first_us
FROM request_parts p
JOIN waited w ON w.operation_id = p.operation_id
JOIN appends a ON a.broker = w.broker AND a.topic = p.topic AND a.partition = p.partition AND a.base = p.reached
WHERE NOT p.is_produce AND p.is_trigger AND w.kind = 'fetch' AND a.first_us <= w.end_us
