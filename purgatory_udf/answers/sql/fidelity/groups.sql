-- Rows of the table `fidelity`: joins, syncs and heartbeats at the old group coordinator, with the response that
-- follows from the state and the generation of the replayed group.
--
--   heartbeat   REBALANCE_IN_PROGRESS while the group prepares to rebalance, else NONE
--   join_group  MEMBER_ID_REQUIRED without a member id (version 4 and later), else the generation of the next rebalance
--   sync_group  NONE once the group is stable; REBALANCE_IN_PROGRESS if it rebalances before that
--
-- Waits are compared only if the coordinator answers heartbeats in the handling thread, as the old one does.
--
-- Reads:  events, recorded, group_changes

WITH requests AS (
    SELECT e.broker, e.group AS group_id, e.time_us, e.type, coalesce(e.member_id, '') AS member,
        coalesce(e.generation, -1) AS generation, coalesce(e.leader, false) AS leader,
        e.type = 'join_group' AND NOT (
            coalesce(e.member_id, '') = '' AND coalesce(e.group_instance_id, '') = '' AND coalesce(e.api_version, 5) >= 4
        ) AS joins,
        CASE
            WHEN e.type = 'join_group' THEN coalesce(nullif(e.assigned_member_id, ''), e.member_id, '')
            ELSE coalesce(e.member_id, '')
        END AS joined_as,
        r.operation_id, r.kind, r.request_id, r.started_at, r.recorded_remote_ms,
        CASE
            WHEN e.type = 'join_group' AND r.recorded_error = 'NONE'
                THEN 'generation ' || coalesce(CAST(r.recorded_generation AS STRING), 'None')
            ELSE r.recorded_error
        END AS recorded
    FROM events e
    JOIN recorded r ON r.operation_id = e.seq
    WHERE e.type IN ('join_group', 'sync_group', 'heartbeat') AND coalesce(e.coordinator, 'old') = 'old'
),
changes AS (
    SELECT c.broker, c.group AS group_id, c.at_us, c.to_state, c.generation, c.members, c.place,
        -- The next change that completes the joins.
        min(CASE WHEN c.to_state IN ('CompletingRebalance', 'Empty', 'Dead') THEN c.place END) OVER (
            PARTITION BY c.broker, c.group ORDER BY c.place ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS joined_place
    FROM group_changes c
),
places AS (
    -- The places of the last change before each request, and of the last one no later than it.
    SELECT broker, group_id, operation_id,
        count(place) OVER (
            PARTITION BY broker, group_id ORDER BY at_us RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before,
        count(place) OVER (
            PARTITION BY broker, group_id ORDER BY at_us RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS until
    FROM (
        SELECT broker, group_id, at_us, place, CAST(NULL AS BIGINT) AS operation_id FROM changes
        UNION ALL
        SELECT broker, group_id, time_us, CAST(NULL AS BIGINT), operation_id FROM requests
    ) moments
),
placed AS (
    SELECT r.*, p.before, p.until,
        max(CASE WHEN r.joins THEN r.time_us END) OVER (
            PARTITION BY r.broker, r.group_id, r.joined_as ORDER BY r.time_us, r.operation_id ROWS UNBOUNDED PRECEDING
        ) AS last_join_us
    FROM requests r
    JOIN places p ON p.operation_id = r.operation_id
),
states AS (
    -- A join sees the state that it causes; other requests see the state before them.
    SELECT p.*, coalesce(s.to_state, 'Empty') AS state, coalesce(s.generation, 0) AS group_generation, s.joined_place,
        coalesce(array_contains(s.members, p.member), false) OR coalesce(p.last_join_us >= coalesce(s.at_us, 0), false)
            AS is_member
    FROM placed p
    LEFT JOIN changes s ON s.broker = p.broker AND s.group_id = p.group_id
        AND s.place = CASE WHEN p.type = 'join_group' THEN p.until ELSE p.before END
),
answers AS (
    SELECT s.operation_id, s.broker, s.kind, s.request_id, s.started_at, s.recorded, s.recorded_remote_ms,
        CASE
            WHEN s.type = 'join_group' AND NOT s.joins THEN 'MEMBER_ID_REQUIRED'
            WHEN s.type = 'join_group' AND s.state <> 'PreparingRebalance'
                THEN 'generation ' || CAST(s.group_generation AS STRING)
            WHEN s.type = 'join_group' AND n.to_state = 'CompletingRebalance'
                THEN 'generation ' || CAST(n.generation AS STRING)
            WHEN s.type = 'join_group' OR s.state IN ('Empty', 'Dead') OR NOT s.is_member THEN 'UNKNOWN_MEMBER_ID'
            WHEN s.generation <> s.group_generation THEN 'ILLEGAL_GENERATION'
            WHEN s.state = 'PreparingRebalance' THEN 'REBALANCE_IN_PROGRESS'
            WHEN s.type = 'heartbeat' OR s.state = 'Stable' OR s.leader OR n.to_state = 'Stable' THEN 'NONE'
            ELSE 'REBALANCE_IN_PROGRESS'
        END AS replayed,
        CASE
            WHEN s.type = 'join_group' AND s.joins AND s.state = 'PreparingRebalance'
                AND n.to_state = 'CompletingRebalance' THEN (n.at_us - s.time_us) / 1e3
            -- The leader's sync has no wait to compare: the replay takes the time of its request.
            WHEN s.type = 'sync_group' AND s.is_member AND s.generation = s.group_generation
                AND s.state NOT IN ('Empty', 'Dead', 'PreparingRebalance', 'Stable')
                THEN CASE WHEN NOT s.leader THEN (n.at_us - s.time_us) / 1e3 END
            ELSE 0
        END AS waited_ms
    FROM states s
    LEFT JOIN changes n ON n.broker = s.broker AND n.group_id = s.group_id
        AND n.place = CASE WHEN s.type = 'join_group' THEN s.joined_place ELSE s.until + 1 END
),
coordinators AS (
    SELECT coalesce(avg(CASE WHEN recorded_outcome = 'at_once' THEN 1e0 ELSE 0e0 END), 1) > 0.5 AS is_classic
    FROM recorded
    WHERE kind = 'heartbeat'
),
compared AS (
    SELECT a.*, is_classic, recorded = replayed AS agrees,
        CASE WHEN is_classic AND recorded = replayed THEN waited_ms END AS replayed_ms
    FROM answers a
    CROSS JOIN coordinators
)
SELECT operation_id, broker, kind, request_id, started_at, recorded AS recorded_outcome, replayed AS replayed_outcome,
    recorded_remote_ms AS recorded_ms, replayed_ms, recorded_remote_ms - replayed_ms AS difference_ms, agrees,
    CASE WHEN NOT agrees THEN CASE WHEN is_classic THEN 'group_state' ELSE 'other_coordinator' END END AS cause
FROM compared
