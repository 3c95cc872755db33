-- The requests that started the operations in `wanted`.
--
-- Reads:  events, wanted

SELECT e.* FROM events e JOIN wanted w ON w.operation_id = e.seq
