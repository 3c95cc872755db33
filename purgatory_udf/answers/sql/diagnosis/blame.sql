-- purgatory_udf/answers/sql/diagnosis/blame.sql
-- The wait of every operation, divided by what it waited for.
--
-- The conditions of an operation are sorted by the time at which they were met. Each is charged with the time since the
-- one before it: that is how much longer the operation waited because of it.
--
--   started                                     ended
--   |── replica 2 ──|──────── replica 3 ────────|       a produce; replica 2 had its records first, replica 3 last
--   |── no_data ──|─ below_min_bytes ─|─ repl. 3 ─|     a consumer's fetch
--
-- If several conditions were unmet at the end, the one that was met last afterwards has all of the rest.
--
-- Reads:  met_conditions, waited, in_sync_partitions, wait_causes, data_waits, remaining_waits, member_waits, heartbeat_members

WITH of_conditions AS (
    SELECT operation_id, from_us, met_us, cause, replica, partition_number FROM met_conditions WHERE met_us > from_us
    UNION ALL
    -- The rest of the wait. Produces have no `rest`: they wait for the high watermark.
    SELECT operation_id, met_us, end_us, coalesce(rest, 5), NULL, NULL FROM met_conditions WHERE is_last AND met_us < end_us
),
parts AS (
    SELECT m.operation_id, w.kind, m.from_us, m.met_us, c.cause, w.broker, m.replica, w.client_id,
        CAST(NULL AS STRING) AS group_id, CAST(NULL AS STRING) AS member_id, k.topic, k.partition
    FROM of_conditions m
    JOIN waited w ON w.operation_id = m.operation_id
    JOIN wait_causes c ON c.number = m.cause
    LEFT JOIN in_sync_partitions k ON k.number = m.partition_number
    UNION ALL
    SELECT operation_id, 'fetch', start_us, met_us, 'no_data', broker, NULL, client_id, NULL, NULL, NULL, NULL
    FROM data_waits
    UNION ALL
    SELECT operation_id, kind, from_us, end_us, cause, broker, NULL, client_id, CASE WHEN kind = 'initial_join' THEN key END,
        NULL, NULL, NULL
    FROM remaining_waits
    UNION ALL
    SELECT operation_id, kind, from_us, met_us, cause, broker, NULL, client_id, CASE WHEN kind <> 'reconciliation' THEN key END,
        member_id, NULL, NULL
    FROM member_waits
    UNION ALL
    SELECT h.operation_id, h.kind, h.start_us, h.end_us, 'member_silent', h.broker, NULL, h.client_id, h.group, h.member, NULL,
        NULL
    FROM heartbeat_members h
)
SELECT p.operation_id, p.kind,
    timestamp_micros(from_us) AS started_at,
    timestamp_micros(met_us) AS ended_at,
    unix_millis(timestamp_micros(met_us)) - unix_millis(timestamp_micros(from_us)) AS wait_ms,
    p.cause, p.broker, p.replica, p.client_id, p.group_id AS group, p.member_id, p.topic, p.partition
FROM parts p
WHERE met_us > from_us
