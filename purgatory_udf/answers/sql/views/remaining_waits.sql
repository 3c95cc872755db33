-- purgatory_udf/answers/sql/views/remaining_waits.sql
-- The cause of the rest of each operation's wait, after the last of its `conditions` was met. Sessions are in
-- `heartbeat_members`, because all of their wait is for the member.
--
-- Reads:    waited, met_conditions, rebalances
-- Columns:  operation_id, kind, broker, client_id, key, end_us: the operation; from_us, when the last condition was met,
--           which is before the end; cause; member_id, a member that never came

WITH of_groups AS (
    SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.expired, coalesce(l.met_us, w.start_us) AS from_us,
        w.end_us
    FROM waited w
    LEFT JOIN (SELECT operation_id, met_us FROM met_conditions WHERE is_last AND kind IN ('join', 'sync')) l
        ON l.operation_id = w.operation_id
    -- With IN, DuckDB would read all columns of all rows first.
    WHERE NOT (w.kind NOT IN ('join', 'sync')) AND coalesce(l.met_us, w.start_us) < w.end_us
)
-- Of the others, only fetches and produces have conditions.
SELECT operation_id, kind, broker, client_id, key, met_us AS from_us, end_us,
    CASE WHEN kind = 'fetch' THEN coalesce(rest, 'no_data') ELSE 'high_watermark' END AS cause,
    CAST(NULL AS STRING) AS member_id
FROM met_conditions
WHERE is_last AND kind IN ('fetch', 'produce') AND met_us < end_us
UNION ALL
SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.start_us, w.end_us,
    CASE
        WHEN w.kind = 'share_fetch'
            AND (w.fetcher LIKE 'remote%' OR w.completed_by IN ('remote_reads', 'offline', 'unknown_partition', 'not_leader'))
            THEN 'remote_storage'
        WHEN w.kind IN ('fetch', 'share_fetch') THEN 'no_data'
        WHEN w.kind = 'delete_records' THEN 'low_watermark'
        WHEN w.kind = 'create_topics' THEN 'no_leader'
        WHEN w.kind IN ('remote_fetch', 'list_offsets') THEN 'remote_storage'
        WHEN w.kind = 'initial_join' THEN 'initial_delay'
        WHEN w.kind = 'reconciliation' THEN 'member_revoking'
        ELSE 'high_watermark'
    END,
    NULL
FROM waited w
WHERE w.kind NOT IN ('join', 'sync', 'heartbeat', 'session') AND w.start_us < w.end_us
    AND NOT EXISTS (SELECT 1 FROM met_conditions m WHERE m.operation_id = w.operation_id)
UNION ALL
SELECT operation_id, kind, broker, client_id, key, from_us, end_us,
    CASE WHEN kind = 'join' THEN 'member_joining' ELSE 'member_syncing' END, member_id
FROM (
    SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.from_us, w.end_us, array_min(r.missing) AS member_id,
        row_number() OVER (PARTITION BY w.operation_id ORDER BY array_min(r.missing) NULLS FIRST) AS place
    FROM of_groups w
    LEFT JOIN rebalances r ON w.expired AND r.broker = w.broker AND r.group = w.key
        AND w.end_us = unix_micros(CASE WHEN w.kind = 'join' THEN r.joined_at ELSE r.started_at END)
) joined
WHERE place = 1
