-- Waits of operations by kind: in total (`by` is all), and by broker, topic, partition, client or group.
-- An operation on several topics counts once for each. Quantiles are of the operations that had to wait, exact and
-- rounded to the hundredth.
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
    SELECT operation_id, kind, expired, watched, wait_ms, explode(partitions) AS part
    FROM ended
    WHERE :by_topic OR :by_partition
),
counted AS (
    SELECT kind, expired, watched, wait_ms, 'all' AS by, '' AS value FROM ended
    UNION ALL
    SELECT kind, expired, watched, wait_ms, 'broker', CAST(broker AS STRING) FROM ended
    WHERE :by_broker AND broker IS NOT NULL
    UNION ALL
    SELECT kind, expired, watched, wait_ms, 'client', client_id FROM ended
    WHERE :by_client AND client_id IS NOT NULL
    UNION ALL
    SELECT kind, expired, watched, wait_ms, 'group', key FROM ended
    WHERE :by_group AND kind IN ('join', 'initial_join', 'sync') AND key IS NOT NULL
    UNION ALL
    SELECT e.kind, e.expired, e.watched, e.wait_ms, 'group', m.group_id
    FROM ended e JOIN keyed_members m ON m.broker = e.broker AND m.key = e.key
    WHERE :by_group AND e.kind IN ('heartbeat', 'session', 'reconciliation')
    UNION ALL
    SELECT kind, expired, watched, wait_ms, 'topic', topic
    FROM (SELECT DISTINCT operation_id, kind, expired, watched, wait_ms, part.topic AS topic FROM exploded) t
    WHERE :by_topic
    UNION ALL
    -- A topic has no partition numbers during its creation.
    SELECT kind, expired, watched, wait_ms, 'partition', topic || '-' || CAST(partition AS STRING)
    FROM (
        SELECT DISTINCT operation_id, kind, expired, watched, wait_ms, part.topic AS topic, part.partition AS partition
        FROM exploded
        WHERE part.partition >= 0
    ) t
    WHERE :by_partition
)
SELECT kind, c.by AS by, value,
    count(*) AS operations,
    count_if(watched) AS waited,
    count_if(watched) / count(*) AS waited_share,
    count_if(expired) AS expired,
    sum(wait_ms) AS waited_ms,
    round(percentile_cont(0.5) WITHIN GROUP (ORDER BY wait_ms) FILTER (WHERE watched), 2) AS p50_ms,
    round(percentile_cont(0.95) WITHIN GROUP (ORDER BY wait_ms) FILTER (WHERE watched), 2) AS p95_ms,
    round(percentile_cont(0.99) WITHIN GROUP (ORDER BY wait_ms) FILTER (WHERE watched), 2) AS p99_ms,
    max(wait_ms) FILTER (WHERE watched) AS max_ms
FROM counted c
GROUP BY kind, c.by, value
ORDER BY c.by, kind, value
