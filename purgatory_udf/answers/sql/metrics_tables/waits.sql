-- Waits of operations by kind: in total (`by` is all), and by broker, topic, partition, client or group.
-- An operation on several topics counts once for each.
--
-- Quantiles are of the operations that had to wait. They are exact: interpolated between waits of whole milliseconds,
-- and rounded to the hundredth, because the last digit of the interpolation differs between engines.
--
-- Reads:       ended, group_transitions
-- Parameters:  :by_broker, :by_topic, :by_partition, :by_client, :by_group, whether to count by it

WITH keyed_members AS (
    -- The key of a join or sync is its group, that of a session or reconciliation `group-member`. Names may contain
    -- hyphens, so the key is split by the names of members.
    SELECT broker, group_id || '-' || member AS key, min(group_id) AS group_id
    FROM (SELECT t.broker, t.group AS group_id, explode(t.members) AS member FROM group_transitions t) m
    GROUP BY broker, group_id || '-' || member
),
-- Equal operations are counted first: there are far fewer of them than operations. Only keys of groups are read.
alike AS (
    SELECT kind, broker, client_id, key, wait_ms,
        count(*) AS operations, count_if(watched) AS waited, count_if(expired) AS expired, count_if(failed) AS failed
    FROM (
        SELECT kind, broker, client_id, wait_ms, watched, expired, failed,
            CASE WHEN kind NOT IN ('produce', 'fetch') THEN key END AS key
        FROM ended
    ) keyed
    GROUP BY kind, broker, client_id, key, wait_ms
),
-- In short lists, a topic may occur several times: removing these takes longer than to group by a longer list.
topic_lists AS (
    SELECT kind, topics, wait_ms,
        count(*) AS operations, count_if(watched) AS waited, count_if(expired) AS expired, count_if(failed) AS failed
    FROM (
        SELECT kind, wait_ms, watched, expired, failed,
            CASE WHEN size(partitions) <= 8 THEN fields(partitions, 'topic')
                ELSE array_distinct(fields(partitions, 'topic')) END AS topics
        FROM ended
        WHERE :by_topic AND size(partitions) > 0
    ) listed
    GROUP BY kind, topics, wait_ms
),
exploded AS (
    SELECT operation_id, kind, expired, failed, watched, wait_ms, explode(partitions) AS part FROM ended WHERE :by_partition
),
counted AS (
    SELECT kind, 'all' AS by, '' AS value, wait_ms, operations, waited, expired, failed FROM alike
    UNION ALL
    SELECT kind, 'broker', CAST(broker AS STRING), wait_ms, operations, waited, expired, failed FROM alike
    WHERE :by_broker AND broker IS NOT NULL
    UNION ALL
    SELECT kind, 'client', client_id, wait_ms, operations, waited, expired, failed FROM alike
    WHERE :by_client AND client_id IS NOT NULL
    UNION ALL
    SELECT kind, 'group', key, wait_ms, operations, waited, expired, failed FROM alike
    WHERE :by_group AND kind IN ('join', 'initial_join', 'sync') AND key IS NOT NULL
    UNION ALL
    SELECT a.kind, 'group', m.group_id, a.wait_ms, a.operations, a.waited, a.expired, a.failed
    FROM alike a JOIN keyed_members m ON m.broker = a.broker AND m.key = a.key
    WHERE :by_group AND a.kind IN ('heartbeat', 'session', 'reconciliation')
    UNION ALL
    SELECT kind, 'topic', topic, wait_ms, operations, waited, expired, failed
    FROM (
        SELECT kind, explode(array_distinct(topics)) AS topic, wait_ms, operations, waited, expired, failed FROM topic_lists
    ) t
    UNION ALL
    -- A topic has no partition numbers during its creation.
    SELECT kind, 'partition', topic || '-' || CAST(partition AS STRING), wait_ms, count(*), count_if(watched),
        count_if(expired), count_if(failed)
    FROM (
        SELECT DISTINCT operation_id, kind, expired, failed, watched, wait_ms, part.topic AS topic, part.partition AS partition
        FROM exploded
        WHERE part.partition >= 0
    ) t
    GROUP BY kind, topic, partition, wait_ms
),
counts AS (
    SELECT kind, c.by AS dimension, value, wait_ms, CAST(sum(operations) AS BIGINT) AS operations,
        CAST(sum(waited) AS BIGINT) AS waited, CAST(sum(expired) AS BIGINT) AS expired, CAST(sum(failed) AS BIGINT) AS failed
    FROM counted c
    GROUP BY kind, c.by, value, wait_ms
),
ranked AS (
    SELECT c.*,
        sum(waited) OVER (PARTITION BY kind, dimension, value ORDER BY wait_ms) AS up_to,
        -- Null if no operation had to wait.
        nullif(sum(waited) OVER (PARTITION BY kind, dimension, value), 0) - 1 AS last_place
    FROM counts c
),
neighbours AS (
    -- A quantile lies between the waits at two neighbouring places; places count from 0.
    SELECT kind, dimension, value,
        sum(operations) AS operations,
        sum(waited) AS waited,
        sum(expired) AS expired,
        sum(failed) AS failed,
        sum(operations * wait_ms) AS waited_ms,
        max(last_place) AS last_place,
        min(wait_ms) FILTER (WHERE up_to > floor(50e-2 * last_place)) AS p50_below,
        min(wait_ms) FILTER (WHERE up_to > ceil(50e-2 * last_place)) AS p50_above,
        min(wait_ms) FILTER (WHERE up_to > floor(95e-2 * last_place)) AS p95_below,
        min(wait_ms) FILTER (WHERE up_to > ceil(95e-2 * last_place)) AS p95_above,
        min(wait_ms) FILTER (WHERE up_to > floor(99e-2 * last_place)) AS p99_below,
        min(wait_ms) FILTER (WHERE up_to > ceil(99e-2 * last_place)) AS p99_above,
        max(wait_ms) FILTER (WHERE waited > 0) AS max_ms,
        max(wait_ms) FILTER (WHERE expired > 0) AS expired_max_ms
    FROM ranked
    GROUP BY kind, dimension, value
)
SELECT kind, n.dimension AS by, value, operations, waited,
    waited / operations AS waited_share,
    expired, failed, waited_ms,
    round(p50_below + (p50_above - p50_below) * (50e-2 * last_place - floor(50e-2 * last_place)), 2) AS p50_ms,
    round(p95_below + (p95_above - p95_below) * (95e-2 * last_place - floor(95e-2 * last_place)), 2) AS p95_ms,
    round(p99_below + (p99_above - p99_below) * (99e-2 * last_place - floor(99e-2 * last_place)), 2) AS p99_ms,
    max_ms, expired_max_ms
FROM neighbours n
ORDER BY n.dimension, kind, value
