-- The ended operations of a replay of the recorded trace. Two replays of one trace have the same operation ids.
--
-- Reads:    ended
-- Columns:  those of `ended`; who, request and nth identify an operation in both replays

SELECT e.*, '' AS who, '' AS request, operation_id AS nth FROM ended e
