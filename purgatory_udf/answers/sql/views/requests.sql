-- The requests of the trace that become one operation each. Operations of groups are excluded, because they result from
-- the history of a group instead of a single event.
--
-- Reads:  events

SELECT seq AS operation_id
FROM events
WHERE type IN ('produce', 'fetch', 'delete_records', 'create_topics', 'list_offsets', 'share_fetch')
