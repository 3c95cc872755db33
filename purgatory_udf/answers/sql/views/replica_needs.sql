-- purgatory_udf/answers/sql/views/replica_needs.sql
-- The offsets that the in-sync followers of a partition had to reach for an operation: those behind a produce's records,
-- and for a consumer's fetch those behind the records that it reads.
--
-- Reads:    produced, events, waited, fetch_data
-- Columns:  operation_id, broker, topic, partition, needed; from_us and until_us, the part of the wait in which followers
--           were missing: for a fetch from the append on

SELECT w.operation_id, w.broker, p.topic, p.partition, p.last_offset + 1 AS needed, w.start_us AS from_us,
    w.end_us AS until_us
FROM produced p
JOIN waited w ON w.operation_id = p.operation_id
WHERE p.error = 'NONE'
UNION ALL
SELECT w.operation_id, w.broker, d.topic, d.partition, d.needed, greatest(w.start_us, d.enough_us), w.end_us
FROM fetch_data d
JOIN waited w ON w.operation_id = d.operation_id
JOIN events e ON e.seq = d.operation_id
WHERE d.enough_us < w.end_us AND e.replica_id < 0
