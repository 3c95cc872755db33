-- purgatory_udf/answers/sql/views/request_parts.sql
-- The partitions of produces and fetches, one row per request and partition. Several queries read them, and reading lists
-- of partitions costs most of their time. Of a consumer's fetch, only the partition that ended its wait (column `trigger`)
-- is included, if one record is enough for the fetch; `first_data` reads the others.
--
-- Reads:    events, waited
-- Columns:  operation_id, type, broker, time_us, client_id, acks, timeout_ms, replica_id, isolation: the request; topic,
--           partition, throttled, error; reached, the offset up to which records were appended, or from which they are
--           fetched; bytes, for a fetch at most this number

WITH exploded AS (
    SELECT seq, type, coalesce(broker, 0) AS broker, time_us, client_id, acks, timeout_ms, replica_id, min_bytes, isolation,
        explode(partitions) AS part
    FROM events
    WHERE type IN ('produce', 'fetch')
),
waiting AS (
    SELECT operation_id, trigger FROM waited WHERE kind = 'fetch'
)
SELECT seq AS operation_id, type, broker, time_us, client_id, acks, timeout_ms, replica_id, isolation,
    part.topic AS topic, part.partition AS partition, part.throttled AS throttled, part.error AS error,
    CASE WHEN type = 'fetch' THEN part.fetch_offset ELSE part.last_offset + 1 END AS reached,
    CASE WHEN type = 'fetch' THEN part.max_bytes ELSE part.bytes END AS bytes
FROM exploded
LEFT JOIN waiting w ON w.operation_id = seq
WHERE type = 'produce' OR replica_id >= 0
    OR min_bytes <= 1 AND w.trigger = part.topic || '-' || CAST(part.partition AS STRING)
