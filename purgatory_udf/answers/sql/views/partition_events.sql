-- The effect of each event on each partition: `reached` is the new end offset of the log or of the replica.
--
-- Fetches of consumers change nothing, and a produce with an error appends nothing: both are excluded.
--
-- Reads:    events
-- Columns:  broker, time_us, seq, request_id, client_id, what, replica, reached, in_sync, topic, partition

WITH requests AS (
    SELECT coalesce(broker, 0) AS broker, time_us, seq, request_id, client_id, type AS what, replica_id,
        explode(partitions) AS part
    FROM events
    WHERE type = 'produce' OR (type = 'fetch' AND replica_id >= 0)
)
SELECT broker, time_us, seq, request_id, client_id, what, CASE WHEN what = 'fetch' THEN replica_id END AS replica,
    CASE WHEN what = 'fetch' THEN part.fetch_offset ELSE part.last_offset + 1 END AS reached,
    NULL AS in_sync, part.topic AS topic, part.partition AS partition
FROM requests
WHERE what = 'fetch' OR part.error = 'NONE'
UNION ALL
SELECT coalesce(broker, 0), time_us, seq, request_id, client_id, change,
    CASE WHEN change = 'replica_end' THEN replica_id END, e.offset, isr, topic, partition
FROM events e
WHERE type = 'partition'
UNION ALL
SELECT coalesce(broker, 0), time_us, seq, request_id, client_id, type, NULL, NULL, NULL, topic, partition
FROM events
-- With IN, DuckDB would read all columns of all rows first.
WHERE NOT (type NOT IN ('remote_read', 'remote_lookup'))
