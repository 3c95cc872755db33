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
-- Reads:  conditions, waited, heartbeat_members

WITH parts AS (
    SELECT c.*,
        coalesce(
            lag(met_us) OVER (
                PARTITION BY c.operation_id
                ORDER BY met_us, later DESC,
                    CASE WHEN topic || '-' || CAST(partition AS STRING) = w.trigger THEN 0 ELSE 1 END,
                    topic, partition, replica, member_id
            ),
            w.start_us
        ) AS from_us,
        w.kind, w.broker, w.client_id, w.key, w.start_us, w.end_us, w.expired, w.after_end
    FROM conditions c
    JOIN waited w ON w.operation_id = c.operation_id
)
SELECT p.operation_id, p.kind,
    timestamp_micros(from_us) AS started_at,
    timestamp_micros(met_us) AS ended_at,
    unix_millis(timestamp_micros(met_us)) - unix_millis(timestamp_micros(from_us)) AS wait_ms,
    p.cause, p.broker, p.replica, p.client_id,
    CASE WHEN p.kind IN ('join', 'sync', 'initial_join') THEN p.key ELSE h.group END AS group,
    coalesce(p.member_id, h.member) AS member_id,
    p.topic, p.partition
FROM parts p
LEFT JOIN heartbeat_members h ON h.operation_id = p.operation_id
WHERE met_us > from_us
