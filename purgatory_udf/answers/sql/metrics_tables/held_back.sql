-- Members that held partitions back: waits of members of consumer groups (KIP-848) for partitions of another member.
--
-- Reads:  held_back

SELECT h.broker, h.group AS group, member_id, client_id, waiting_member_id, waiting_client_id, partitions, started_at,
    ended_at, held_ms, ended_by
FROM held_back h
ORDER BY started_at, h.broker, h.group, member_id, waiting_member_id
