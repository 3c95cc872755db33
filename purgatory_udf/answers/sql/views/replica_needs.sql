-- purgatory_udf/answers/sql/views/replica_needs.sql
-- The offsets that the in-sync followers of a partition had to reach for an operation: those behind a produce's records,
-- and for a consumer's fetch those behind the records that it reads. Partitions without a known in-sync set are excluded.
--
-- Reads:    produced, waited, fetch_data, in_sync_partitions
-- Columns:  operation_id, start_us, end_us: the operation; partition_number, of `in_sync_partitions`; needed, the offset;
--           from_us, when followers began to be missing: for a fetch with the append; is_trigger, whether the partition
--           ended the wait

SELECT w.operation_id, w.start_us, w.end_us, k.number AS partition_number, p.reached AS needed, w.start_us AS from_us,
    coalesce(w.trigger = k.topic || '-' || CAST(k.partition AS STRING), false) AS is_trigger
FROM produced p
JOIN waited w ON w.operation_id = p.operation_id
JOIN in_sync_partitions k ON k.broker = w.broker AND k.topic = p.topic AND k.partition = p.partition
WHERE p.is_appended
UNION ALL
SELECT f.operation_id, f.start_us, f.end_us, k.number, f.needed, greatest(f.start_us, f.enough_us), f.is_trigger
FROM fetch_data f
JOIN in_sync_partitions k ON k.broker = f.broker AND k.topic = f.topic AND k.partition = f.partition
WHERE f.enough_us < f.end_us AND f.replica_id < 0
