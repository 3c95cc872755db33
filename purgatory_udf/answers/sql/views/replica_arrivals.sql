-- purgatory_udf/answers/sql/views/replica_arrivals.sql
-- When each in-sync follower of `replica_needs` reached the offset, or left the in-sync set.
--
-- Reads:    replica_needs, in_sync_members, request_parts, events
-- Columns:  operation_id, broker, topic, partition, replica; from_us, when the operation began to wait for it; met_us, when the follower no longer held the operation up, at
--           most its end; reached_us, when it reached the offset, also after the end; null if never

WITH needed AS (
    SELECT n.*, m.replica, m.since_us AS joined_us, m.until_us AS left_us
    FROM replica_needs n
    JOIN in_sync_members m ON m.broker = n.broker AND m.topic = n.topic AND m.partition = n.partition
        AND m.since_us < n.until_us AND (m.until_us IS NULL OR m.until_us > n.from_us)
),
-- Followers report most offsets several times.
reports AS (
    SELECT broker, topic, partition, replica_id AS replica, reached, min(time_us) AS time_us
    FROM request_parts
    WHERE NOT is_produce AND replica_id >= 0
    GROUP BY broker, topic, partition, replica_id, reached
    UNION ALL
    SELECT coalesce(e.broker, 0), e.topic, e.partition, e.replica_id, e.offset, e.time_us
    FROM events e
    WHERE e.type = 'partition' AND e.change = 'replica_end' AND e.offset IS NOT NULL
),
marks AS (
    SELECT r.broker, r.topic, r.partition, r.replica, r.reached, r.time_us,
        CAST(NULL AS BIGINT) AS operation_id, CAST(NULL AS BIGINT) AS from_us, CAST(NULL AS BIGINT) AS until_us,
        CAST(NULL AS BIGINT) AS joined_us, CAST(NULL AS BIGINT) AS left_us
    FROM reports r
    JOIN (SELECT DISTINCT broker, topic, partition, replica FROM needed) n ON n.broker = r.broker
        AND n.topic = r.topic AND n.partition = r.partition AND n.replica = r.replica
    UNION ALL
    SELECT broker, topic, partition, replica, needed, NULL, operation_id, from_us, until_us, joined_us, left_us
    FROM needed
),
-- The first time among the reports of this offset or a higher one.
found AS (
    SELECT operation_id, broker, topic, partition, replica, from_us, until_us, joined_us, left_us,
        min(time_us) OVER (PARTITION BY broker, topic, partition, replica ORDER BY reached DESC) AS reached_us
    FROM marks
)
SELECT operation_id, broker, topic, partition, replica, from_us, reached_us,
    greatest(from_us, least(until_us, coalesce(reached_us, until_us), coalesce(left_us, until_us))) AS met_us
FROM found
WHERE operation_id IS NOT NULL
    -- A follower that joined the in-sync set later counts if it still had to reach the offset then.
    AND (joined_us <= from_us OR coalesce(reached_us, until_us) > joined_us)
