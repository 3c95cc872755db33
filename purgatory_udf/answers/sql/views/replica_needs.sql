-- purgatory_udf/answers/sql/views/replica_needs.sql
-- The offsets that the in-sync followers of a partition had to reach for an operation: those behind a produce's records,
-- and for a consumer's fetch those behind the records that it reads.
--
-- Reads:    produced, waited, fetch_data
-- Columns:  operation_id, broker, topic, partition, needed; from_us and until_us, the part of the wait in which followers
--           were missing: for a fetch from the append on

SELECT w.operation_id, w.broker, p.topic, p.partition, p.reached AS needed, w.start_us AS from_us,
    w.end_us AS until_us
FROM produced p
JOIN waited w ON w.operation_id = p.operation_id
WHERE p.error = 'NONE'
UNION ALL
SELECT operation_id, broker, topic, partition, needed, greatest(start_us, enough_us), end_us
FROM fetch_data
WHERE enough_us < end_us AND replica_id < 0
