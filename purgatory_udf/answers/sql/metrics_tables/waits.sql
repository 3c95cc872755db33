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
exploded AS (
    SELECT operation_id, kind, expired, failed, watched, wait_ms, explode(partitions) AS part
    FROM ended
    WHERE :by_topic OR :by_partition
),
counted AS (
    SELECT kind, expired, failed, watched, wait_ms, 'all' AS by, '' AS value FROM ended
    UNION ALL
    SELECT kind, expired, failed, watched, wait_ms, 'broker', CAST(broker AS STRING) FROM ended
    WHERE :by_broker AND broker IS NOT NULL
    UNION ALL
    SELECT kind, expired, failed, watched, wait_ms, 'client', client_id FROM ended
    WHERE :by_client AND client_id IS NOT NULL
    UNION ALL
    SELECT kind, expired, failed, watched, wait_ms, 'group', key FROM ended
    WHERE :by_group AND kind IN ('join', 'initial_join', 'sync') AND key IS NOT NULL
    UNION ALL
    SELECT e.kind, e.expired, e.failed, e.watched, e.wait_ms, 'group', m.group_id
    FROM ended e JOIN keyed_members m ON m.broker = e.broker AND m.key = e.key
    WHERE :by_group AND e.kind IN ('heartbeat', 'session', 'reconciliation')
    UNION ALL
    SELECT kind, expired, failed, watched, wait_ms, 'topic', topic
    FROM (SELECT DISTINCT operation_id, kind, expired, failed, watched, wait_ms, part.topic AS topic FROM exploded) t
    WHERE :by_topic
    UNION ALL
    -- A topic has no partition numbers during its creation.
    SELECT kind, expired, failed, watched, wait_ms, 'partition', topic || '-' || CAST(partition AS STRING)
    FROM (
        SELECT DISTINCT operation_id, kind, expired, failed, watched, wait_ms, part.topic AS topic, part.partition AS partition
        FROM exploded
        WHERE part.partition >= 0
    ) t
    WHERE :by_partition
),
-- Equal waits are counted first: there are far fewer of them than operations.
counts AS (
    SELECT kind, c.by AS dimension, value, wait_ms,
        count(*) AS operations, count_if(watched) AS waited, count_if(expired) AS expired, count_if(failed) AS failed
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
