-- The rebalances of consumer groups (KIP-848): from the change to Assigning or Reconciling to the next other state.
--
--   Stable ──► Assigning ──► Reconciling ──► … ──► Stable
--              started_at                          ended_at
--
-- A group whose only member gets a new assignment at once does not rebalance.
--
-- Reads:    group_changes, last_event
-- Columns:  as in `rebalances`; `ended_as` is the next state, or `open` for a rebalance without an end

WITH numbered AS (
    SELECT c.broker, c.group AS group_id, c.at AS changed_at, to_state, reason, generation, members, place,
        to_state IN ('Assigning', 'Reconciling') AS is_rebalancing,
        lag(to_state) OVER so_far AS state_before,
        lag(members) OVER so_far AS members_before
    FROM group_changes c
    WINDOW so_far AS (PARTITION BY c.broker, c.group ORDER BY place)
),
marked AS (
    SELECT n.*,
        CASE WHEN is_rebalancing AND coalesce(state_before, 'Empty') NOT IN ('Assigning', 'Reconciling') THEN place END
            AS begins,
        CASE WHEN NOT is_rebalancing THEN place END AS settles
    FROM numbered n
),
placed AS (
    SELECT m.*, count(begins) OVER (PARTITION BY broker, group_id ORDER BY place) AS round FROM marked m
),
rounds AS (
    SELECT broker, group_id, round,
        min_by(changed_at, begins) AS started_at,
        min_by(reason, begins) AS reason,
        min_by(members_before, begins) AS members_before,
        min_by(changed_at, settles) AS settled_at,
        min_by(to_state, settles) AS settled_as,
        min_by(generation, settles) AS settled_generation,
        max(generation) AS last_generation,
        min_by(members, settles) AS members
    FROM placed
    WHERE round > 0
    GROUP BY broker, group_id, round
)
SELECT r.broker, r.group_id AS group, coalesce(r.settled_generation, r.last_generation) AS generation, r.started_at,
    r.settled_at AS ended_at,
    unix_millis(r.settled_at) - unix_millis(r.started_at) AS length_ms,
    r.reason, coalesce(r.settled_as, 'open') AS ended_as, r.members,
    -- A new group had no members.
    CASE WHEN r.members IS NOT NULL
        THEN array_sort(coalesce(array_except(r.members_before, r.members), array_except(r.members, r.members)))
    END AS missing,
    CASE WHEN r.members IS NOT NULL
        THEN array_sort(coalesce(array_except(r.members, r.members_before), r.members))
    END AS joined,
    coalesce(unix_micros(r.started_at) > (SELECT time_us FROM last_event), false) AS after_end
FROM rounds r
