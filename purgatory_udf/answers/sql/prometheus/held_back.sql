-- How long members of consumer groups (KIP-848) waited for partitions, by the client that held them back.
--
-- Reads:  metrics_held_back

SELECT h.broker, h.group AS group, coalesce(client_id, member_id) AS client, sum(held_ms) AS held_ms
FROM metrics_held_back h
GROUP BY h.broker, h.group, coalesce(client_id, member_id)
ORDER BY h.broker, h.group, client
