-- purgatory_udf/answers/sql/views/member_waits.sql
-- The waits of groups for their members: of joins and syncs, one row per member whose request ended a part of the wait, and
-- one for the rest; of a reconciliation, one for the whole wait.
--
-- Reads:    waited, group_requests, rebalances
-- Columns:  operation_id, kind, broker, client_id, key; from_us and met_us, the part of the wait; cause; member_id, the member
--           that it was for; of the rest, one that never came

WITH group_waits AS (
    SELECT operation_id, kind, broker, client_id, key, start_us, end_us, expired
    FROM waited
    -- With IN, DuckDB would read all columns of all rows first.
    WHERE NOT (kind NOT IN ('join', 'sync'))
),
-- An equality join by tens of seconds; a join by ranges alone would compare all waits with all requests of a group.
binned AS (
    SELECT w.*,
        explode(sequence(CAST(floor(start_us / 10000000) AS BIGINT), CAST(floor(end_us / 10000000) AS BIGINT), 1)) AS bin
    FROM group_waits w
),
met AS (
    SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, g.member, g.time_us AS met_us,
        coalesce(lag(g.time_us) OVER in_order, w.start_us) AS from_us,
        lead(g.time_us) OVER in_order IS NULL AS is_last
    FROM binned w
    JOIN group_requests g ON g.group = w.key AND g.broker = w.broker AND g.time_us > w.start_us AND g.time_us <= w.end_us
        AND g.type = CASE WHEN w.kind = 'sync' THEN 'sync_group' ELSE 'join_group' END
        AND CAST(floor(g.time_us / 10000000) AS BIGINT) = w.bin
    WINDOW in_order AS (PARTITION BY w.operation_id ORDER BY g.time_us, g.seq DESC, g.member)
),
remaining AS (
    SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.expired, coalesce(l.met_us, w.start_us) AS from_us,
        w.end_us
    FROM group_waits w
    LEFT JOIN (SELECT operation_id, met_us FROM met WHERE is_last) l ON l.operation_id = w.operation_id
    WHERE coalesce(l.met_us, w.start_us) < w.end_us
),
missing AS (
    SELECT w.operation_id, w.kind, w.broker, w.client_id, w.key, w.from_us, w.end_us, array_min(r.missing) AS member_id,
        row_number() OVER (PARTITION BY w.operation_id ORDER BY array_min(r.missing) NULLS FIRST) AS place
    FROM remaining w
    LEFT JOIN rebalances r ON w.expired AND r.broker = w.broker AND r.group = w.key
        AND w.end_us = unix_micros(CASE WHEN w.kind = 'join' THEN r.joined_at ELSE r.started_at END)
)
SELECT operation_id, kind, broker, client_id, key, from_us, met_us,
    CASE WHEN kind = 'sync' THEN 'member_syncing' ELSE 'member_joining' END AS cause, member AS member_id
FROM met
WHERE from_us < met_us
UNION ALL
SELECT operation_id, kind, broker, client_id, key, from_us, end_us,
    CASE WHEN kind = 'sync' THEN 'member_syncing' ELSE 'member_joining' END, member_id
FROM missing
WHERE place = 1
UNION ALL
SELECT operation_id, kind, broker, client_id, key, start_us, end_us, 'member_revoking', NULL
FROM waited
WHERE kind = 'reconciliation' AND start_us < end_us
