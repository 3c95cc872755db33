-- purgatory_udf/answers/sql/views/replica_needs.sql
-- The offsets that the in-sync followers of a partition had to reach for an operation: those behind a produce's records,
-- and for a consumer's fetch those behind the records that it reads. Partitions without a known in-sync set are excluded.
--
-- Reads:    produced, waited, fetch_data, in_sync_versions
-- Columns:  operation_id, broker, topic, partition, needed; from_us and until_us, the part of the wait in which followers
--           were missing: for a fetch from the append on

WITH known AS (
    SELECT DISTINCT broker, topic, partition FROM in_sync_versions
)
SELECT w.operation_id, w.broker, p.topic, p.partition, p.reached AS needed, w.start_us AS from_us,
    w.end_us AS until_us
FROM produced p
JOIN waited w ON w.operation_id = p.operation_id
JOIN known k ON k.broker = w.broker AND k.topic = p.topic AND k.partition = p.partition
WHERE p.is_appended
UNION ALL
SELECT f.operation_id, f.broker, f.topic, f.partition, f.needed, greatest(f.start_us, f.enough_us), f.end_us
FROM fetch_data f
JOIN known k ON k.broker = f.broker AND k.topic = f.topic AND k.partition = f.partition
WHERE f.enough_us < f.end_us AND f.replica_id < 0
