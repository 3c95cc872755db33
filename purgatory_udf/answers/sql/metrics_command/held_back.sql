-- The longest waits for partitions that another member held back.
--
-- Reads:       metrics_held_back
-- Parameters:  :top, maximum number of rows

SELECT h.broker, h.group AS group, coalesce(client_id, member_id) AS member, size(partitions) AS partitions,
    coalesce(waiting_client_id, waiting_member_id) AS waiting, started_at, held_ms, ended_by
FROM metrics_held_back h
ORDER BY held_ms DESC NULLS LAST, started_at, h.broker, h.group, member_id, waiting_member_id
LIMIT :top
