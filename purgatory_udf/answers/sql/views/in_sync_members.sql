-- purgatory_udf/answers/sql/views/in_sync_members.sql
-- The periods in which a follower was continuously in the in-sync set of a partition.
--
-- Reads:    in_sync_versions
-- Columns:  broker (the leader), topic, partition, replica, since_us, until_us (null if it never left)

WITH members AS (
    SELECT broker, topic, partition, place, since_us, until_us, explode(in_sync) AS replica FROM in_sync_versions
),
numbered AS (
    SELECT m.*,
        place - row_number() OVER (PARTITION BY broker, topic, partition, replica ORDER BY place) AS period
    FROM members m
)
SELECT broker, topic, partition, replica, min(since_us) AS since_us,
    CASE WHEN count(*) = count(until_us) THEN max(until_us) END AS until_us
FROM numbered
WHERE replica <> broker
GROUP BY broker, topic, partition, replica, period
