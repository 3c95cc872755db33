-- purgatory_udf/answers/sql/views/first_data.sql
-- The first append behind each offset of a waiting fetch, if it was made by the end of the wait, for the fetches that are
-- not in `found_data`. One row per fetch and partition. Followers' fetches are excluded unless a partition of theirs is
-- throttled: they read what is appended, so all of their wait is without data.
--
-- Reads:    events, unsettled_fetches, request_parts, appends
-- Columns:  operation_id, broker, client_id, start_us, end_us, trigger, min_bytes, replica_id, is_committed: the fetch; topic,
--           partition, fetch_offset, max_bytes (null if one record is enough); first_us, the time of the append, but not
--           before the fetch started; place: the rank of the partition, 1 for the one that ended the fetch

WITH exploded AS (
    SELECT seq, explode(partitions) AS part
    FROM events
    WHERE type = 'fetch' AND seq IN (SELECT operation_id FROM unsettled_fetches WHERE NOT is_whole)
),
parts AS (
    SELECT u.operation_id, u.broker, u.end_us, part.topic AS topic, part.partition AS partition,
        part.fetch_offset AS fetch_offset, part.max_bytes AS max_bytes
    FROM exploded e
    JOIN unsettled_fetches u ON u.operation_id = e.seq
    WHERE u.replica_id < 0 OR part.throttled
    UNION ALL
    SELECT u.operation_id, u.broker, u.end_us, p.topic, p.partition, p.reached, CAST(NULL AS BIGINT)
    FROM request_parts p
    JOIN unsettled_fetches u ON u.operation_id = p.operation_id
    WHERE u.is_whole
),
-- Most fetches start where an append does, so an equality join finds the first append behind their offset.
matched AS (
    SELECT p.*, a.first_us AS appended_us
    FROM parts p
    LEFT JOIN appends a ON a.broker = p.broker AND a.topic = p.topic AND a.partition = p.partition
        AND a.base = p.fetch_offset
),
others AS (
    SELECT * FROM matched WHERE appended_us IS NULL
),
-- For the other fetches, it is the append that reaches the offset first, among those that reach it or more.
marks AS (
    SELECT a.broker, a.topic, a.partition, a.reached, a.time_us, CAST(NULL AS BIGINT) AS operation_id
    FROM appends a
    JOIN (SELECT DISTINCT broker, topic, partition FROM others) o ON o.broker = a.broker AND o.topic = a.topic
        AND o.partition = a.partition
    UNION ALL
    SELECT broker, topic, partition, fetch_offset + 1, NULL, operation_id FROM others
),
marked AS (
    SELECT operation_id, topic, partition,
        min(time_us) OVER (PARTITION BY broker, topic, partition ORDER BY reached DESC) AS appended_us
    FROM marks
),
appended AS (
    SELECT * FROM matched WHERE appended_us <= end_us
    UNION ALL
    SELECT o.operation_id, o.broker, o.end_us, o.topic, o.partition, o.fetch_offset, o.max_bytes, m.appended_us
    FROM others o
    JOIN marked m ON m.operation_id = o.operation_id AND m.topic = o.topic AND m.partition = o.partition
    WHERE m.appended_us <= o.end_us
)
SELECT u.operation_id, u.broker, u.client_id, u.start_us, u.end_us, u.trigger, u.min_bytes, u.replica_id, u.is_committed,
    a.topic, a.partition, a.fetch_offset, a.max_bytes, greatest(a.appended_us, u.start_us) AS first_us,
    row_number() OVER (
        PARTITION BY u.operation_id
        ORDER BY CASE WHEN a.topic || '-' || CAST(a.partition AS STRING) = u.trigger THEN 0 ELSE 1 END,
            a.appended_us, a.topic, a.partition
    ) AS place
FROM appended a
JOIN unsettled_fetches u ON u.operation_id = a.operation_id
