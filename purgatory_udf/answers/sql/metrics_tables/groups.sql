-- Groups by broker and protocol: how long rebalances took, members that were lost, and partitions that were held back.
--
-- Reads:    rebalances, consumer_rebalances, held_back, ended, group_transitions
-- Columns:  `sessions_lost`, members without a heartbeat for their session timeout; `rebalance_timeouts`, expired joins
--           and syncs of classic groups, and members of consumer groups that did not revoke, join or sync in time

WITH members AS (
    SELECT t.broker, t.group AS group_id, explode(t.members) AS member FROM group_transitions t
),
-- The key of an operation is its group, or `group-member`. Names may contain hyphens.
member_keys AS (
    SELECT broker, group_id || '-' || member AS key, min(group_id) AS group_id
    FROM members
    GROUP BY broker, group_id || '-' || member
),
group_keys AS (
    SELECT DISTINCT t.broker, t.group AS group_id FROM group_transitions t
),
expired AS (
    SELECT e.broker, coalesce(g.group_id, m.group_id) AS group_id,
        CASE WHEN e.kind = 'heartbeat' OR g.group_id IS NOT NULL THEN 'classic' ELSE 'consumer' END AS protocol,
        e.kind IN ('heartbeat', 'session') AS is_session
    FROM ended e
    LEFT JOIN group_keys g ON g.broker = e.broker AND g.group_id = e.key AND e.kind IN ('join', 'sync')
    LEFT JOIN member_keys m ON m.broker = e.broker AND m.key = e.key
    WHERE e.expired AND NOT e.after_end AND e.kind IN ('heartbeat', 'session', 'join', 'sync', 'reconciliation')
),
rounds AS (
    SELECT r.broker, r.group AS group_id, 'classic' AS protocol, ended_as, length_ms FROM rebalances r
    WHERE NOT after_end
    UNION ALL
    SELECT r.broker, r.group, 'consumer', ended_as, length_ms FROM consumer_rebalances r
    WHERE NOT after_end
),
counted AS (
    SELECT broker, group_id, protocol, count(*) AS rebalances, count_if(ended_as = 'Stable') AS stabilized,
        sum(CASE WHEN ended_as = 'Stable' THEN length_ms ELSE 0 END) AS to_stable_ms,
        max(CASE WHEN ended_as = 'Stable' THEN length_ms END) AS max_to_stable_ms,
        0 AS sessions_lost, 0 AS rebalance_timeouts, 0 AS held_back, 0 AS held_back_ms
    FROM rounds
    GROUP BY broker, group_id, protocol
    UNION ALL
    SELECT broker, group_id, protocol, 0, 0, 0, NULL, count_if(is_session), count_if(NOT is_session), 0, 0
    FROM expired
    WHERE group_id IS NOT NULL
    GROUP BY broker, group_id, protocol
    UNION ALL
    SELECT h.broker, h.group, 'consumer', 0, 0, 0, NULL, 0, 0, count(*), sum(held_ms)
    FROM held_back h
    GROUP BY h.broker, h.group
)
SELECT broker, group_id AS group, protocol, sum(rebalances) AS rebalances, sum(stabilized) AS stabilized,
    sum(to_stable_ms) AS to_stable_ms, max(max_to_stable_ms) AS max_to_stable_ms, sum(sessions_lost) AS sessions_lost,
    sum(rebalance_timeouts) AS rebalance_timeouts, sum(held_back) AS held_back, sum(held_back_ms) AS held_back_ms
FROM counted
GROUP BY broker, group_id, protocol
ORDER BY broker, group_id, protocol
