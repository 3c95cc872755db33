-- purgatory_udf/answers/sql/views/follower_reports.sql
-- The offsets that followers of `in_sync_partitions` reported, by fetches from them or in `replica_end` events.
--
-- Reads:    events, in_sync_partitions
-- Columns:  partition_number, replica, reached: the offset; time_us, when it was reported

WITH fetched AS (
    SELECT coalesce(broker, 0) AS broker, time_us, replica_id, explode(partitions) AS part
    FROM events
    WHERE type = 'fetch' AND replica_id >= 0
)
SELECT k.number AS partition_number, f.replica_id AS replica, f.part.fetch_offset AS reached, f.time_us
FROM fetched f
JOIN in_sync_partitions k ON k.broker = f.broker AND k.topic = f.part.topic AND k.partition = f.part.partition
UNION ALL
SELECT k.number, e.replica_id, e.offset, e.time_us
FROM events e
JOIN in_sync_partitions k ON k.broker = coalesce(e.broker, 0) AND k.topic = e.topic AND k.partition = e.partition
WHERE e.type = 'partition' AND e.change = 'replica_end' AND e.offset IS NOT NULL
