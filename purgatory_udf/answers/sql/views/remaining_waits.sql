-- purgatory_udf/answers/sql/views/remaining_waits.sql
-- The cause of the rest of each operation's wait: after the first data of fetches in `data_waits`, and all of the wait of
-- operations without conditions. The rest after `met_conditions` is in `blame`; waits for members of groups are in
-- `member_waits`, and sessions in `heartbeat_members`.
--
-- Reads:    waited, met_conditions, data_waits, wait_causes
-- Columns:  operation_id, kind, broker, client_id, key, end_us: the operation; from_us, when the rest began, which is
--           before the end; cause

SELECT d.operation_id, 'fetch' AS kind, d.broker, d.client_id, CAST(NULL AS STRING) AS key, d.met_us AS from_us, d.end_us,
    c.cause
FROM data_waits d
JOIN wait_causes c ON c.number = d.rest
WHERE d.met_us < d.end_us
UNION ALL
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.start_us, w.end_us, 'no_data'
FROM waited w
WHERE w.kind = 'fetch' AND w.start_us < w.end_us
    AND NOT EXISTS (SELECT 1 FROM data_waits d WHERE d.operation_id = w.operation_id)
    AND NOT EXISTS (SELECT 1 FROM met_conditions m WHERE m.operation_id = w.operation_id)
UNION ALL
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.start_us, w.end_us,
    CASE
        WHEN w.kind = 'share_fetch'
            AND (w.fetcher LIKE 'remote%' OR w.completed_by IN ('remote_reads', 'offline', 'unknown_partition', 'not_leader'))
            THEN 'remote_storage'
        WHEN w.kind = 'share_fetch' THEN 'no_data'
        WHEN w.kind = 'delete_records' THEN 'low_watermark'
        WHEN w.kind = 'create_topics' THEN 'no_leader'
        WHEN w.kind IN ('remote_fetch', 'list_offsets') THEN 'remote_storage'
        WHEN w.kind = 'initial_join' THEN 'initial_delay'
        ELSE 'high_watermark'
    END
FROM waited w
WHERE w.kind NOT IN ('fetch', 'join', 'sync', 'reconciliation', 'heartbeat', 'session') AND w.start_us < w.end_us
    AND NOT EXISTS (SELECT 1 FROM met_conditions m WHERE m.operation_id = w.operation_id)
