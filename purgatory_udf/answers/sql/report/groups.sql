-- The states of the groups with the most changes, each from `t` to `until` in milliseconds since the epoch.
--
-- Reads:       group_changes
-- Parameters:  :most, maximum number of groups
--              :most_states, maximum number of rows
-- Columns:     group (and broker), state, t, until, reason; members, their number; changes, the group's total

WITH busiest AS (
    SELECT c.broker, c.group AS group_id, count(*) AS changes
    FROM group_changes c
    GROUP BY c.broker, c.group
    ORDER BY changes DESC, c.broker, c.group
    LIMIT :most
),
states AS (
    SELECT b.group_id || ' at broker ' || CAST(b.broker AS STRING) AS name, c.to_state AS state,
        unix_millis(c.at) AS t, c.reason, size(c.members) AS members, b.changes, c.place,
        lead(unix_millis(c.at)) OVER (PARTITION BY b.broker, b.group_id ORDER BY c.place) AS next_ms
    FROM group_changes c
    JOIN busiest b ON b.broker = c.broker AND b.group_id = c.group
)
-- The last state of a group lasts to the end of the chart.
SELECT name AS group, state, t, coalesce(next_ms, (SELECT max(t) FROM states)) AS until, reason, members, changes
FROM states
ORDER BY changes DESC, name, place
LIMIT :most_states
