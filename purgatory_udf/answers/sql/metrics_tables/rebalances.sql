-- The rebalances of groups: length, reason, members that are missing afterwards, and the last member to join.
--
-- Reads:  rebalances

SELECT r.broker, r.group AS group, generation, started_at, joined_at, ended_at, length_ms, joining_ms, reason,
    joined_because, ended_as, members, missing, joined, last_to_join, after_end
FROM rebalances r
ORDER BY started_at, r.broker, r.group
