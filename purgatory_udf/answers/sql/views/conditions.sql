-- purgatory_udf/answers/sql/views/conditions.sql
-- What each waiting produce or fetch waited for, except for data: one row per condition, with the time at which it was met
-- or the wait ended. `met_conditions` adds the data that fetches waited for; the rest of the wait is in `remaining_waits`.
--
-- Reads:    fetch_data, replica_arrivals, replica_needs, below_min_isr
-- Columns:  operation_id, cause, met_us (at most the end of the wait); later, an order of conditions with the same met_us:
--           the one that was met last after the end of the wait has the greatest; replica, topic, partition

-- A consumer's fetch waits for data, then for enough data, then for replication.
SELECT DISTINCT operation_id, 'below_min_bytes' AS cause,
    greatest(start_us, coalesce(least(end_us, enough_us), end_us)) AS met_us, CAST(1 AS BIGINT) AS later,
    CAST(NULL AS INT) AS replica, CAST(NULL AS STRING) AS topic, CAST(NULL AS INT) AS partition
FROM fetch_data
-- One append may have been enough.
WHERE is_summed AND coalesce(enough_us <> first_us, true)
UNION ALL
-- A follower that had not replicated the records.
SELECT operation_id, 'follower_behind', met_us, coalesce(reached_us, 9223372036854775807), replica, topic, partition
FROM replica_arrivals
WHERE met_us > from_us
UNION ALL
-- With fewer in-sync replicas than the minimum, the high watermark does not advance.
SELECT n.operation_id, 'below_min_isr', least(n.until_us, coalesce(b.until_us, n.until_us)), 3, array_min(b.missing), n.topic,
    n.partition
FROM replica_needs n
JOIN below_min_isr b ON b.broker = n.broker AND b.topic = n.topic AND b.partition = n.partition
    AND b.since_us < n.until_us AND coalesce(b.until_us, n.until_us) > n.from_us
