-- The events on the partitions of operations until each operation ended, counted by event and replica: their number
-- since the operation started (`times`), the last time, and the offset reached. The latter two include events before
-- the start, because the last recorded progress of a follower may be much older.
--
-- Of these events, one may have ended the operation: an event at that time on the key in the column `trigger`. A produce
-- or a consumer's fetch needs a high watermark, so of several events in the same microsecond the progress of a replica
-- (that with the lowest ID, as in `blame`) precedes a reported watermark, which precedes an append. For other operations,
-- these come last.
--
-- Reads:    partition_events, places
-- Columns:  operation_id, topic, partition, what, replica, times, last_us, reached; in_sync is the in-sync set that the
--           event at in_sync_us (with the number in_sync_seq) set last. Of the operations' possible ends, the one with the
--           lowest (rank, end_seq) ended it; end_request_id and end_in_sync are its request and in-sync set

-- Two joins read this: of a view, each would read all events.
WITH near AS (
    SELECT t.*
    FROM partition_events t
    LEFT JOIN (SELECT DISTINCT broker, topic, partition FROM places) p ON p.broker = t.broker AND p.topic = t.topic
        AND p.partition = t.partition
    LEFT JOIN (SELECT DISTINCT topic FROM places WHERE partition < 0) c ON c.topic = t.topic
    WHERE t.time_us <= (SELECT max(ended_us) FROM places) AND (p.topic IS NOT NULL OR c.topic IS NOT NULL)
),
of_operations AS (
    SELECT p.operation_id, p.topic, p.partition, p.started_us, t.time_us, t.seq, t.what, t.replica, t.reached, t.in_sync,
        t.request_id, p.by_watermark,
        CASE WHEN t.time_us = p.ended_us AND p.trigger = p.topic || '-' || CAST(p.partition AS STRING) THEN t.seq END AS end_seq
    FROM near t
    JOIN places p ON p.topic = t.topic AND p.partition = t.partition AND p.broker = t.broker
    WHERE t.time_us <= p.ended_us AND t.seq <> p.operation_id
    UNION ALL
    -- A topic that is being created has no partition yet: events of any of them count, at any broker.
    SELECT p.operation_id, p.topic, p.partition, p.started_us, t.time_us, t.seq, t.what, t.replica, t.reached, t.in_sync,
        t.request_id, p.by_watermark,
        CASE WHEN t.time_us = p.ended_us AND p.trigger = p.topic THEN t.seq END
    FROM near t
    JOIN places p ON p.topic = t.topic
    WHERE p.partition < 0 AND t.time_us <= p.ended_us AND t.seq <> p.operation_id
)
SELECT operation_id, topic, partition, what, replica,
    count_if(time_us >= started_us) AS times,
    max(time_us) AS last_us,
    max(reached) AS reached,
    max_by(in_sync, CASE WHEN in_sync IS NOT NULL THEN struct(time_us, seq) END) AS in_sync,
    max_by(time_us, CASE WHEN in_sync IS NOT NULL THEN struct(time_us, seq) END) AS in_sync_us,
    max_by(seq, CASE WHEN in_sync IS NOT NULL THEN struct(time_us, seq) END) AS in_sync_seq,
    CASE
        WHEN NOT by_watermark
            THEN CASE WHEN replica IS NULL AND what NOT IN ('isr', 'high_watermark', 'last_stable') THEN 0 ELSE 1 END
        WHEN what IN ('produce', 'log_end') THEN 9000000002
        WHEN what IN ('high_watermark', 'last_stable') THEN 9000000001
        ELSE coalesce(replica, 9000000000)
    END AS rank,
    min(end_seq) AS end_seq,
    min_by(request_id, end_seq) AS end_request_id,
    min_by(in_sync, end_seq) AS end_in_sync
FROM of_operations
GROUP BY operation_id, topic, partition, what, replica, by_watermark
