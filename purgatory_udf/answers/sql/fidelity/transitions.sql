-- The state changes of groups, in the fields of `contract.outcome.Transition`.
--
-- Reads:  group_changes

SELECT c.group AS group, broker, at_us, from_state, to_state, reason, generation, members
FROM group_changes c
ORDER BY broker, c.group, place
