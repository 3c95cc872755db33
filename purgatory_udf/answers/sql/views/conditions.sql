-- purgatory_udf/answers/sql/views/conditions.sql
-- What each waiting produce or fetch waited for, except for data: one row per condition, with the time at which it was met
-- or the wait ended. `met_conditions` adds the data that fetches waited for; the rest of the wait is in `blame`.
--
-- Reads:    fetch_data, replica_arrivals, replica_needs, in_sync_partitions, below_min_isr
-- Columns:  operation_id, start_us, end_us: the operation; cause, a number of `wait_causes`; met_us (at most the end of the
--           wait); later, an order of conditions with the same met_us: the one that was met last after the end of the wait
--           has the greatest; is_trigger, whether the partition ended the wait; partition_number, of `in_sync_partitions`;
--           replica

-- A consumer's fetch waits for data, then for enough data, then for replication.
SELECT DISTINCT operation_id, start_us, end_us, 2 AS cause,
    greatest(start_us, coalesce(least(end_us, enough_us), end_us)) AS met_us, CAST(1 AS BIGINT) AS later,
    false AS is_trigger, CAST(NULL AS INT) AS partition_number, CAST(NULL AS INT) AS replica
FROM fetch_data
-- One append may have been enough.
WHERE is_summed AND coalesce(enough_us <> first_us, true)
UNION ALL
-- A follower that had not replicated the records.
SELECT operation_id, start_us, end_us, 3, met_us, coalesce(reached_us, 9223372036854775807), is_trigger, partition_number,
    replica
FROM replica_arrivals
WHERE met_us > from_us
UNION ALL
-- With fewer in-sync replicas than the minimum, the high watermark does not advance.
SELECT n.operation_id, n.start_us, n.end_us, 4, least(n.end_us, coalesce(b.until_us, n.end_us)), 3, n.is_trigger,
    n.partition_number, array_min(b.missing)
FROM replica_needs n
JOIN in_sync_partitions k ON k.number = n.partition_number
JOIN below_min_isr b ON b.broker = k.broker AND b.topic = k.topic AND b.partition = k.partition
    AND b.since_us < n.end_us AND coalesce(b.until_us, n.end_us) > n.from_us
