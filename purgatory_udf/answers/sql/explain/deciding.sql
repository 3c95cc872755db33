-- purgatory_udf/answers/sql/explain/deciding.sql
-- The event that ended an operation: an event at that time on the key in the column `trigger`.
--
-- A produce or a consumer's fetch needs a high watermark, so of several events in the same microsecond the progress of a
-- replica (that with the lowest ID, as in `blame`) precedes a reported watermark, which precedes an append. For other
-- operations, these come last.
--
-- Reads:    partition_events, places

WITH at_end AS (
    SELECT p.operation_id, p.trigger, t.seq, t.what, t.replica, t.request_id, t.in_sync,
        CASE WHEN p.partition < 0 THEN p.topic ELSE p.topic || '-' || CAST(p.partition AS STRING) END AS key,
        CASE
            WHEN NOT p.by_watermark
                THEN CASE WHEN t.replica IS NULL AND t.what NOT IN ('isr', 'high_watermark', 'last_stable') THEN 0 ELSE 1 END
            WHEN t.what IN ('produce', 'log_end') THEN 9000000002
            WHEN t.what IN ('high_watermark', 'last_stable') THEN 9000000001
            ELSE coalesce(t.replica, 9000000000)
        END AS rank
    FROM partition_events t
    JOIN places p ON p.topic = t.topic AND p.ended_us = t.time_us
    WHERE t.seq <> p.operation_id AND (p.partition < 0 OR (p.partition = t.partition AND p.broker = t.broker))
)
SELECT operation_id, min_by(what, struct(rank, seq)) AS what, min_by(replica, struct(rank, seq)) AS replica,
    min_by(request_id, struct(rank, seq)) AS request_id, min_by(in_sync, struct(rank, seq)) AS in_sync
FROM at_end
WHERE key = trigger
GROUP BY operation_id
