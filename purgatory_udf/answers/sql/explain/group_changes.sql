-- The state changes of a group in their order, by broker.
--
-- Reads:       group_changes
-- Parameters:  :group
--              :from_us and :until_us, the time in microseconds since the epoch
--              :top, maximum number of rows

SELECT c.broker, c.group AS group, at_us, from_state, to_state, reason, generation, members
FROM group_changes c
WHERE c.group = :group AND at_us BETWEEN :from_us AND :until_us
ORDER BY c.broker, place
LIMIT :top
