-- The event that ended an operation: the first event at that time on the key in the column `trigger`.
--
-- Reads:    partition_events, places

WITH at_end AS (
    SELECT p.operation_id, p.trigger, t.seq, t.what, t.replica, t.request_id, t.in_sync,
        CASE WHEN p.partition < 0 THEN p.topic ELSE p.topic || '-' || CAST(p.partition AS STRING) END AS key
    FROM partition_events t
    JOIN places p ON p.topic = t.topic AND p.ended_us = t.time_us
    WHERE t.seq <> p.operation_id AND (p.partition < 0 OR (p.partition = t.partition AND p.broker = t.broker))
)
SELECT operation_id, min_by(what, seq) AS what, min_by(replica, seq) AS replica, min_by(request_id, seq) AS request_id,
    min_by(in_sync, seq) AS in_sync
FROM at_end
WHERE key = trigger
GROUP BY operation_id
