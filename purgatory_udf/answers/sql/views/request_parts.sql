-- purgatory_udf/answers/sql/views/request_parts.sql
-- The partitions of produces and fetches, one row per request and partition. Several queries read them, and reading lists
-- of partitions costs most of their time. Of a consumer's fetch, only the partition that ended its wait (column `trigger`)
-- is included, if one record is enough for the fetch; `first_data` reads the others. Of a follower's fetch, partitions
-- that are not throttled are only included if the trace has in-sync sets.
--
-- Reads:    events, waited, in_sync_versions
-- Columns:  operation_id, is_produce, broker, time_us, acks, timeout_ms, replica_id, is_committed: the request; topic,
--           partition, throttled; is_appended, whether a produce appended its records; reached, the offset up to which
--           records were appended, or from which they are fetched; bytes of a produce

WITH exploded AS (
    SELECT seq, type = 'produce' AS is_produce, coalesce(broker, 0) AS broker, time_us, acks, timeout_ms, replica_id,
        min_bytes, isolation = 'read_committed' AS is_committed, explode(partitions) AS part
    FROM events
    WHERE type IN ('produce', 'fetch')
),
waiting AS (
    SELECT operation_id, trigger FROM waited WHERE kind = 'fetch'
)
SELECT seq AS operation_id, is_produce, broker, time_us, acks, timeout_ms, replica_id, is_committed,
    part.topic AS topic, part.partition AS partition, part.throttled AS throttled,
    is_produce AND part.error = 'NONE' AS is_appended,
    CASE WHEN is_produce THEN part.last_offset + 1 ELSE part.fetch_offset END AS reached,
    CASE WHEN is_produce THEN part.bytes END AS bytes
FROM exploded
LEFT JOIN waiting w ON w.operation_id = seq
WHERE is_produce
    OR replica_id >= 0 AND (part.throttled OR EXISTS (SELECT 1 FROM in_sync_versions))
    OR min_bytes <= 1 AND w.trigger = part.topic || '-' || CAST(part.partition AS STRING)
