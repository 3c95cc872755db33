-- The events on the partitions of operations until each operation ended, counted by event and replica: their number
-- since the operation started (`times`), the last time, and the offset reached. The latter two include events before
-- the start, because the last recorded progress of a follower may be much older.
--
-- Reads:    partition_events, places
-- Columns:  operation_id, topic, partition, what, replica, times, last_us, reached; in_sync is the in-sync set that the
--           event at in_sync_us (with the number in_sync_seq) set last

WITH of_operations AS (
    SELECT p.operation_id, p.topic, p.partition, p.started_us, t.time_us, t.seq, t.what, t.replica, t.reached, t.in_sync
    FROM partition_events t
    JOIN places p ON p.topic = t.topic AND p.partition = t.partition AND p.broker = t.broker
    WHERE t.time_us <= p.ended_us AND t.seq <> p.operation_id
    UNION ALL
    -- A topic that is being created has no partition yet: events of any of them count, at any broker.
    SELECT p.operation_id, p.topic, p.partition, p.started_us, t.time_us, t.seq, t.what, t.replica, t.reached, t.in_sync
    FROM partition_events t
    JOIN places p ON p.topic = t.topic
    WHERE p.partition < 0 AND t.time_us <= p.ended_us AND t.seq <> p.operation_id
)
SELECT operation_id, topic, partition, what, replica,
    count_if(time_us >= started_us) AS times,
    max(time_us) AS last_us,
    max(reached) AS reached,
    max_by(in_sync, CASE WHEN in_sync IS NOT NULL THEN struct(time_us, seq) END) AS in_sync,
    max_by(time_us, CASE WHEN in_sync IS NOT NULL THEN struct(time_us, seq) END) AS in_sync_us,
    max_by(seq, CASE WHEN in_sync IS NOT NULL THEN struct(time_us, seq) END) AS in_sync_seq
FROM of_operations
GROUP BY operation_id, topic, partition, what, replica
