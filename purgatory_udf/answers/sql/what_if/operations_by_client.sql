-- The ended operations of a replay of a simulated trace. Simulations have different ids, so operations are matched by
-- client, request, kind and number. Rebalances have no client, and a join may cause several operations.
--
-- Reads:    ended
-- Columns:  those of `ended`; who, request and nth identify an operation in both replays

SELECT e.*, coalesce(client_id, '') AS who, coalesce(request_id, key, '') AS request,
    row_number() OVER (
        PARTITION BY kind, coalesce(client_id, ''), coalesce(request_id, key, '') ORDER BY started_at, operation_id
    ) AS nth
FROM ended e
