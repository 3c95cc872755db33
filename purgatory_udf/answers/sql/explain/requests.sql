-- The requests that started the operations in `wanted`.
--
-- Reads:  events, wanted

SELECT e.seq, e.type, e.time_us, e.broker, e.request_id, e.client_id, e.partitions, e.topics, e.acks, e.timeout_ms,
    e.replica_id, e.min_bytes, e.max_wait_ms, e.isolation, e.group AS group, e.member_id
FROM events e
JOIN wanted w ON w.operation_id = e.seq
