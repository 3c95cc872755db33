-- The events that some operations began with.
--
-- Reads:  events, wanted

SELECT e.* FROM events e JOIN wanted w ON w.operation_id = e.seq
