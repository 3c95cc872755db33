-- purgatory_udf/answers/sql/views/first_data.sql
-- The first append behind each offset of a waiting fetch, if it was made by the end of the wait. One row per fetch and
-- partition. Followers' fetches are excluded unless a partition of theirs is throttled: they read what is appended, so
-- all of their wait is without data.
--
-- Reads:    events, waited, appends
-- Columns:  operation_id, broker, start_us, end_us, trigger, min_bytes: the fetch; topic, partition, fetch_offset,
--           max_bytes, replica_id; appended_us, and first_us: the same, but not before the fetch started; place: the
--           rank of the partition, 1 for the one that ended the fetch

WITH fetches AS (
    SELECT e.seq AS operation_id, w.broker, w.start_us, w.end_us, w.trigger, e.min_bytes, e.replica_id,
        explode(e.partitions) AS part
    FROM events e
    JOIN waited w ON w.operation_id = e.seq
    -- A remote fetch waits for remote storage only.
    WHERE e.type = 'fetch' AND w.kind = 'fetch'
),
parts AS (
    SELECT operation_id, broker, start_us, end_us, trigger, min_bytes, part.topic AS topic, part.partition AS partition,
        part.fetch_offset AS fetch_offset, part.max_bytes AS max_bytes, replica_id
    FROM fetches
    WHERE replica_id < 0 OR part.throttled
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
    SELECT o.operation_id, o.broker, o.start_us, o.end_us, o.trigger, o.min_bytes, o.topic, o.partition, o.fetch_offset,
        o.max_bytes, o.replica_id, m.appended_us
    FROM others o
    JOIN marked m ON m.operation_id = o.operation_id AND m.topic = o.topic AND m.partition = o.partition
    WHERE m.appended_us <= o.end_us
)
SELECT a.*, greatest(appended_us, start_us) AS first_us,
    row_number() OVER (
        PARTITION BY operation_id
        ORDER BY CASE WHEN topic || '-' || CAST(partition AS STRING) = trigger THEN 0 ELSE 1 END,
            appended_us, topic, partition
    ) AS place
FROM appended a
