-- purgatory_udf/answers/sql/views/remaining_waits.sql
-- The cause of the rest of each operation's wait, after the last of its `conditions` was met. Sessions are in
-- `heartbeat_members`, because all of their wait is for the member.
--
-- Reads:    waited, fetch_data, events, rebalances
-- Columns:  those of `waited`; cause; member_id, a member that never came

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
        WHEN w.kind = 'reconciliation' THEN 'member_revoking'
        ELSE 'high_watermark'
    END AS cause,
    CAST(NULL AS STRING) AS member_id
FROM waited w
WHERE w.kind NOT IN ('fetch', 'join', 'sync', 'heartbeat', 'session')
UNION ALL
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.start_us, w.end_us,
    CASE
        WHEN d.operation_id IS NULL THEN 'no_data'
        WHEN e.replica_id >= 0 THEN 'replication_throttled'
        WHEN e.isolation = 'read_committed' THEN 'open_transaction'
        ELSE 'high_watermark'
    END,
    NULL
FROM waited w
LEFT JOIN (SELECT DISTINCT operation_id FROM fetch_data) d ON d.operation_id = w.operation_id
LEFT JOIN (SELECT seq, replica_id, isolation FROM events WHERE type = 'fetch') e ON e.seq = w.operation_id
WHERE w.kind = 'fetch'
UNION ALL
SELECT operation_id, kind, broker, client_id, key, start_us, end_us,
    CASE WHEN kind = 'join' THEN 'member_joining' ELSE 'member_syncing' END, member_id
FROM (
    SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.start_us, w.end_us, array_min(r.missing) AS member_id,
        row_number() OVER (PARTITION BY w.operation_id ORDER BY array_min(r.missing) NULLS FIRST) AS place
    FROM waited w
    LEFT JOIN rebalances r ON w.expired AND r.broker = w.broker AND r.group = w.key
        AND w.end_us = unix_micros(CASE WHEN w.kind = 'join' THEN r.joined_at ELSE r.started_at END)
    WHERE w.kind IN ('join', 'sync')
) groups
WHERE place = 1
