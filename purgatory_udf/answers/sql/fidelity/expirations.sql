-- The number of recorded and replayed expirations; a produce and a list-offsets request count once for each partition that
-- timed out. For brokers with two readings of a counter, only expirations between the readings count.
--
-- Reads:  recorded, expirations, counter_readings

WITH timed_out AS (
    SELECT operation_id, count(*) AS partitions
    FROM (SELECT operation_id, explode(partitions) AS part FROM expirations WHERE kind IN ('produce', 'list_offsets')) exploded
    WHERE part.error = 'REQUEST_TIMED_OUT'
    GROUP BY operation_id
),
replayed AS (
    SELECT e.operation_id, CASE WHEN e.kind IN ('produce', 'list_offsets') THEN coalesce(t.partitions, 0) ELSE 1 END AS expired,
        unix_micros(e.expired_at) AS end_us
    FROM expirations e
    LEFT JOIN timed_out t ON t.operation_id = e.operation_id
    WHERE NOT e.after_end AND NOT (e.kind = 'fetch' AND e.wait_ms = 0)
),
ends AS (
    SELECT r.kind, r.broker,
        CASE
            WHEN r.kind IN ('produce acks=-1', 'list_offsets') THEN r.recorded_timed_out
            WHEN r.recorded_outcome = 'expired' THEN 1
            ELSE 0
        END AS recorded,
        unix_micros(r.started_at) + r.recorded_remote_ms * 1000 AS recorded_end_us,
        coalesce(p.expired, 0) AS replayed,
        p.end_us AS replayed_end_us
    FROM recorded r
    LEFT JOIN replayed p ON p.operation_id = r.operation_id
    WHERE r.kind IN ('consumer fetch', 'follower fetch', 'produce acks=-1', 'remote fetch', 'list_offsets', 'share fetch')
)
SELECT e.kind, e.broker,
    sum(CASE
        WHEN c.kind IS NULL OR (e.recorded_end_us > c.since_us AND e.recorded_end_us <= c.until_us) THEN e.recorded
        ELSE 0
    END) AS recorded,
    sum(CASE
        WHEN c.kind IS NULL OR (e.replayed_end_us > c.since_us AND e.replayed_end_us <= c.until_us) THEN e.replayed
        ELSE 0
    END) AS replayed,
    max(c.counted) AS counted
FROM ends e
LEFT JOIN counter_readings c ON c.kind = e.kind AND c.broker = e.broker
GROUP BY e.kind, e.broker
ORDER BY e.kind, e.broker
