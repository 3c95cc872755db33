-- What the brokers recorded of the operations in `wanted`.
--
-- Reads:  recorded, wanted

SELECT r.operation_id, r.recorded_outcome, r.recorded_remote_ms
FROM recorded r
JOIN wanted w ON w.operation_id = r.operation_id
