-- purgatory_udf/answers/sql/views/conditions.sql
-- What each waiting operation waited for: one row per condition, with the time at which it was met or the wait ended.
-- The rest of the wait is in `remaining_waits`.
--
-- Reads:    waited, fetch_data, replica_arrivals, replica_needs, below_min_isr, group_requests
-- Columns:  operation_id, cause, met_us (at most the end of the wait); later, an order of conditions with the same met_us:
--           the one that was met last after the end of the wait has the greatest; replica, member_id, topic, partition

WITH data AS (
    SELECT operation_id, first_us, max(enough_us) AS enough_us FROM fetch_data GROUP BY operation_id, first_us
)
-- A consumer's fetch: data, then enough data, then replication.
SELECT d.operation_id, 'no_data' AS cause, greatest(w.start_us, least(w.end_us, d.first_us)) AS met_us,
    CAST(2 AS BIGINT) AS later, CAST(NULL AS INT) AS replica, CAST(NULL AS STRING) AS member_id,
    CAST(NULL AS STRING) AS topic, CAST(NULL AS INT) AS partition
FROM data d
JOIN waited w ON w.operation_id = d.operation_id
UNION ALL
SELECT d.operation_id, 'below_min_bytes', greatest(w.start_us, coalesce(least(w.end_us, d.enough_us), w.end_us)), 1, NULL,
    NULL, NULL, NULL
FROM data d
JOIN waited w ON w.operation_id = d.operation_id
-- One append was enough.
WHERE coalesce(d.enough_us <> d.first_us, true)
UNION ALL
-- A follower that had not replicated the records.
SELECT operation_id, 'follower_behind', met_us, coalesce(reached_us, 9223372036854775807), replica, NULL, topic, partition
FROM replica_arrivals
WHERE met_us > from_us
UNION ALL
-- With fewer in-sync replicas than the minimum, the high watermark does not advance.
SELECT n.operation_id, 'below_min_isr', least(n.until_us, coalesce(b.until_us, n.until_us)), 3, array_min(b.missing), NULL, n.topic,
    n.partition
FROM replica_needs n
JOIN below_min_isr b ON b.broker = n.broker AND b.topic = n.topic AND b.partition = n.partition
    AND b.since_us < n.until_us AND coalesce(b.until_us, n.until_us) > n.from_us
UNION ALL
-- The members of a group whose requests a rebalance waited for.
SELECT w.operation_id, CASE WHEN w.kind = 'sync' THEN 'member_syncing' ELSE 'member_joining' END, g.time_us, g.seq, NULL,
    g.member, NULL, NULL
FROM waited w
JOIN group_requests g ON g.group = w.key AND g.broker = w.broker AND g.time_us > w.start_us AND g.time_us <= w.end_us
    AND g.type = CASE WHEN w.kind = 'sync' THEN 'sync_group' ELSE 'join_group' END
WHERE w.kind IN ('join', 'sync')
