-- The rebalances of groups: length, reason, members that are missing afterwards, and the last member to join.
--
-- A rebalance lasts from the group's change to PreparingRebalance to its next change to Stable, Empty or Dead. Another
-- change to PreparingRebalance before that interrupts it.
--
--   Stable {a b c} ──► PreparingRebalance {a b} ──► CompletingRebalance {a b} ──► Stable
--                      started_at                   joined_at                     ended_at
--                      missing: c (a member before, not after); last_to_join: the member that joined last
--
-- Reads:    group_changes, group_requests, last_event
-- Columns:  `ended_as` is the last state, `interrupted`, or `open` for a rebalance without an end. `after_end`: the
--           rebalance started after the last event of the trace, when members count as silent.

WITH numbered AS (
    SELECT c.broker, c.group AS group_id, c.at AS changed_at, to_state, reason, generation, members, place,
        lag(members) OVER so_far AS members_before,
        sum(CASE WHEN to_state = 'PreparingRebalance' THEN 1 ELSE 0 END) OVER so_far AS round
    FROM group_changes c
    WINDOW so_far AS (PARTITION BY c.broker, c.group ORDER BY place)
),
placed AS (
    -- The places of the changes that start the rebalance, complete the joins, and complete the rebalance.
    SELECT broker, group_id, changed_at, to_state, reason, generation, members, members_before, round,
        CASE WHEN to_state = 'PreparingRebalance' THEN place END AS begins,
        CASE WHEN to_state IN ('CompletingRebalance', 'Empty', 'Dead') THEN place END AS joins,
        CASE WHEN to_state IN ('Stable', 'Empty', 'Dead') THEN place END AS settles
    FROM numbered
    WHERE round > 0
),
rounds AS (
    SELECT broker, group_id, round,
        min(changed_at) AS started_at,
        min_by(reason, begins) AS reason,
        min_by(members_before, begins) AS members_before,
        min_by(changed_at, joins) AS joined_at,
        min_by(reason, joins) AS joined_because,
        min_by(members, joins) AS members,
        min_by(generation, joins) AS generation,
        min_by(changed_at, settles) AS settled_at,
        min_by(to_state, settles) AS settled_as
    FROM placed
    GROUP BY broker, group_id, round
),
followed AS (
    SELECT r.*, lead(started_at) OVER (PARTITION BY broker, group_id ORDER BY round) AS next_at
    FROM rounds r
),
last_joins AS (
    SELECT r.broker, r.group_id, r.round, max_by(j.member, struct(j.time_us, j.seq)) AS last_to_join
    FROM followed r
    JOIN group_requests j ON j.type = 'join_group' AND j.broker = r.broker AND j.group = r.group_id
        AND j.time_us >= unix_micros(r.started_at)
        AND j.time_us <= coalesce(unix_micros(coalesce(r.joined_at, r.settled_at, r.next_at)), j.time_us)
    GROUP BY r.broker, r.group_id, r.round
)
SELECT r.broker, r.group_id AS group, r.generation, r.started_at, r.joined_at,
    coalesce(r.settled_at, r.next_at) AS ended_at,
    unix_millis(coalesce(r.settled_at, r.next_at)) - unix_millis(r.started_at) AS length_ms,
    unix_millis(r.joined_at) - unix_millis(r.started_at) AS joining_ms,
    r.reason, r.joined_because,
    coalesce(r.settled_as, CASE WHEN r.next_at IS NOT NULL THEN 'interrupted' END, 'open') AS ended_as,
    r.members,
    -- A new group had no members.
    CASE WHEN r.joined_at IS NOT NULL
        THEN array_sort(coalesce(array_except(r.members_before, r.members), array_except(r.members, r.members)))
    END AS missing,
    CASE WHEN r.joined_at IS NOT NULL
        THEN array_sort(coalesce(array_except(r.members, r.members_before), r.members))
    END AS joined,
    l.last_to_join,
    coalesce(unix_micros(r.started_at) > (SELECT time_us FROM last_event), false) AS after_end
FROM followed r
LEFT JOIN last_joins l ON l.broker = r.broker AND l.group_id = r.group_id AND l.round = r.round
