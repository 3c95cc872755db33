-- The requests of the trace that become one operation each. Operations of groups follow from the group's whole history
-- and not from single events.
--
-- Reads:  events

SELECT seq AS operation_id FROM events WHERE type IN ('produce', 'fetch', 'delete_records', 'create_topics')
