-- The longest rebalance of a group that started no later than the last event of the group.
--
-- Reads:       rebalances, events
-- Parameters:  :group

SELECT unix_micros(started_at) AS started_us, length_ms, reason, last_to_join, missing
FROM rebalances r
WHERE r.group = :group
    AND coalesce(started_at <= (SELECT max(e.event_time) FROM events e WHERE e.group = :group), true)
ORDER BY length_ms DESC NULLS LAST, started_at
LIMIT 1
