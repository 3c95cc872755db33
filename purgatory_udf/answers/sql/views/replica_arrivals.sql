-- purgatory_udf/answers/sql/views/replica_arrivals.sql
-- When each in-sync follower of `replica_needs` reached the offset, or left the in-sync set.
--
-- Reads:    replica_needs, in_sync_members, in_sync_partitions, follower_reports
-- Columns:  operation_id, start_us, end_us, partition_number, is_trigger: as in `replica_needs`; replica; from_us, when the
--           operation began to wait for it; met_us, when the follower no longer held the operation up, at most its end;
--           reached_us, when it reached the offset, also after the end; null if never

WITH members AS (
    SELECT k.number AS partition_number, m.replica, m.since_us AS joined_us, m.until_us AS left_us
    FROM in_sync_members m
    JOIN in_sync_partitions k ON k.broker = m.broker AND k.topic = m.topic AND k.partition = m.partition
),
-- The offsets that followers had to reach or have reported. Followers report most offsets several times.
offsets AS (
    SELECT partition_number, replica, reached, min(time_us) AS time_us
    FROM (
        SELECT partition_number, replica, reached, time_us FROM follower_reports
        UNION ALL
        SELECT n.partition_number, m.replica, n.needed, NULL
        FROM (SELECT DISTINCT partition_number, needed FROM replica_needs) n
        JOIN (SELECT DISTINCT partition_number, replica FROM members) m ON m.partition_number = n.partition_number
    ) every
    GROUP BY partition_number, replica, reached
),
-- The first time among the reports of this offset or a higher one.
times AS (
    SELECT partition_number, replica, reached,
        min(time_us) OVER (PARTITION BY partition_number, replica ORDER BY reached DESC) AS reached_us
    FROM offsets
),
found AS (
    SELECT n.*, m.replica, m.joined_us, m.left_us, t.reached_us
    FROM replica_needs n
    JOIN members m ON m.partition_number = n.partition_number
        AND m.joined_us < n.end_us AND (m.left_us IS NULL OR m.left_us > n.from_us)
    JOIN times t ON t.partition_number = m.partition_number AND t.replica = m.replica AND t.reached = n.needed
)
SELECT operation_id, start_us, end_us, partition_number, is_trigger, replica, from_us, reached_us,
    greatest(from_us, least(end_us, coalesce(reached_us, end_us), coalesce(left_us, end_us))) AS met_us
FROM found
-- A follower that joined the in-sync set later counts if it still had to reach the offset then.
WHERE joined_us <= from_us OR coalesce(reached_us, end_us) > joined_us
