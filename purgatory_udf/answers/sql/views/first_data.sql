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
-- The first append behind each offset: the append that reaches it first, among those that reach it or more.
marks AS (
    SELECT broker, topic, partition, reached, time_us, CAST(NULL AS BIGINT) AS operation_id FROM appends
    UNION ALL
    SELECT broker, topic, partition, fetch_offset + 1, NULL, operation_id FROM parts
),
appended AS (
    SELECT operation_id, topic, partition,
        min(time_us) OVER (PARTITION BY broker, topic, partition ORDER BY reached DESC) AS appended_us
    FROM marks
)
SELECT p.*, greatest(a.appended_us, p.start_us) AS first_us,
    row_number() OVER (
        PARTITION BY p.operation_id
        ORDER BY CASE WHEN p.topic || '-' || CAST(p.partition AS STRING) = p.trigger THEN 0 ELSE 1 END,
            a.appended_us, p.topic, p.partition
    ) AS place
FROM parts p
JOIN appended a ON a.operation_id = p.operation_id AND a.topic = p.topic AND a.partition = p.partition
WHERE a.appended_us <= p.end_us
