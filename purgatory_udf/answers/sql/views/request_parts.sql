-- purgatory_udf/answers/sql/views/request_parts.sql
-- The partitions of produces and fetches, one row per request and partition. Several queries read them, and reading lists
-- of partitions costs most of their time. Of a consumer's fetch, partitions are only included if one record is enough for
-- the fetch: the one that ended its wait (column `trigger`) or, if data did not end it, all. `first_data` reads the others.
-- Of a follower's fetch, only throttled partitions are included; `follower_reports` has the others.
--
-- Reads:    events, waited
-- Columns:  operation_id, is_produce, broker, time_us, replica_id, is_committed: the request; topic,
--           partition, throttled; is_trigger, whether the partition ended the wait of a consumer's fetch; is_appended,
--           whether a produce appended its records; reached, the offset up to which records were appended, or from which
--           they are fetched; bytes of a produce

-- Requests are joined before their lists are read: they are fewer than their partitions.
WITH waiting AS (
    SELECT operation_id, trigger, try_cast(regexp_extract(trigger, '[0-9]+$', 0) AS INT) AS trigger_partition,
        completed_by <> 'min_bytes' AS is_whole
    FROM waited
    WHERE kind = 'fetch'
),
requests AS (
    SELECT e.seq, e.type = 'produce' AS is_produce, coalesce(e.broker, 0) AS broker, e.time_us,
        e.replica_id, e.isolation = 'read_committed' AS is_committed, w.trigger, w.trigger_partition,
        coalesce(w.is_whole, false) AS is_whole, e.partitions
    FROM events e
    LEFT JOIN waiting w ON w.operation_id = e.seq
    WHERE e.type IN ('produce', 'fetch')
        AND (e.type = 'produce' OR e.replica_id >= 0 OR e.min_bytes <= 1 AND (w.trigger IS NOT NULL OR w.is_whole))
),
exploded AS (
    SELECT seq, is_produce, broker, time_us, replica_id, is_committed, trigger, trigger_partition, is_whole,
        explode(partitions) AS part
    FROM requests
)
SELECT seq AS operation_id, is_produce, broker, time_us, replica_id, is_committed,
    part.topic AS topic, part.partition AS partition, part.throttled AS throttled,
    -- Few fetches are whole; with OR, names would be concatenated for all.
    replica_id < 0 AND CASE WHEN is_whole
        THEN coalesce(trigger = part.topic || '-' || CAST(part.partition AS STRING), false) ELSE true END AS is_trigger,
    is_produce AND part.error = 'NONE' AS is_appended,
    CASE WHEN is_produce THEN part.last_offset + 1 ELSE part.fetch_offset END AS reached,
    CASE WHEN is_produce THEN part.bytes END AS bytes
FROM exploded
WHERE is_produce
    OR replica_id >= 0 AND part.throttled
    -- Numbers are compared first, which is faster than to concatenate.
    OR replica_id < 0 AND is_whole
    OR replica_id < 0 AND part.partition = trigger_partition AND trigger = part.topic || '-' || CAST(part.partition AS STRING)
