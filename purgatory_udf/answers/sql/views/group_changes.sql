-- The state changes of each group with their `place` in time order, and their time in microseconds. Changes at the same
-- time are in the order of the states in a generation.
--
-- Reads:  group_transitions

SELECT t.broker, t.group AS group, t.at AS at, unix_micros(t.at) AS at_us, t.from_state, t.to_state, t.reason,
    t.generation, t.members,
    row_number() OVER (
        PARTITION BY t.broker, t.group
        ORDER BY t.at, t.generation, CASE t.to_state
            WHEN 'CompletingRebalance' THEN 0 WHEN 'Empty' THEN 0 WHEN 'Stable' THEN 1 WHEN 'PreparingRebalance' THEN 2
            WHEN 'Dead' THEN 3 ELSE 5 END
    ) AS place
FROM group_transitions t
