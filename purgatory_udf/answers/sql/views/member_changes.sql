-- The changes of members of consumer groups (KIP-848) with their time in microseconds, the time of the member's next
-- change, and its client.
--
-- Reads:  member_transitions, events

WITH clients AS (
    SELECT coalesce(e.broker, 0) AS broker, e.group AS group_id, e.member_id, max(e.client_id) AS client_id
    FROM events e
    WHERE e.type IN ('consumer_group_heartbeat', 'join_group', 'heartbeat')
        AND e.group IN (SELECT t.group FROM member_transitions t)
    GROUP BY coalesce(e.broker, 0), e.group, e.member_id
)
SELECT m.broker, m.group AS group, m.at AS at, unix_micros(m.at) AS at_us, m.member_id, c.client_id, m.from_state,
    m.to_state, m.reason, m.epoch, m.assigned, m.revoking, m.held_by, m.classic,
    lead(m.at) OVER (PARTITION BY m.broker, m.group, m.member_id ORDER BY m.at, m.epoch) AS next_at
FROM member_transitions m
LEFT JOIN clients c ON c.broker = m.broker AND c.group_id = m.group AND c.member_id = m.member_id
