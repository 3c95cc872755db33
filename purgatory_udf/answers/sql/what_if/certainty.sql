-- The number of outcomes under a variant that are certain although arrivals are fixed, by kind. An outcome is certain
-- unless its client or a follower of its broker was answered earlier at another time than in the baseline: the client
-- would have sent its next request, and the follower its next fetch, at another time.
--
-- Reads:    changes, baseline_events
-- Columns:  kind; the numbers of operations that are certain, that follow a change for their client, and that follow a
--           change for a follower; `all` counts every operation, `differing` the changed operations

WITH followers AS (
    SELECT seq AS operation_id FROM baseline_events WHERE type = 'fetch' AND replica_id >= 0
),
ends AS (
    SELECT c.kind, c.broker, coalesce(c.client_id, '') AS client, f.operation_id IS NOT NULL AS follows,
        c.change <> 'same' AS differs,
        unix_millis(c.started_at) AS started_ms,
        -- The earlier time of both sides, or the only one.
        unix_millis(c.started_at) + least(c.baseline_wait_ms, c.variant_wait_ms) AS ended_ms,
        coalesce(c.shift_ms <> 0, true) AS shifted
    FROM changes c
    LEFT JOIN followers f ON f.operation_id = c.operation_id
),
shifted_clients AS (
    SELECT broker, client, min(ended_ms) AS first_ms FROM ends WHERE shifted GROUP BY broker, client
),
shifted_followers AS (
    SELECT broker, min(ended_ms) AS first_ms FROM ends WHERE shifted AND follows GROUP BY broker
),
reasons AS (
    -- The first shifted response of a client is certain itself: its request had arrived as recorded.
    SELECT e.kind, e.differs,
        CASE
            WHEN e.started_ms >= c.first_ms THEN 'client'
            WHEN NOT e.follows AND e.ended_ms > f.first_ms THEN 'follower'
            ELSE 'sure'
        END AS reason
    FROM ends e
    LEFT JOIN shifted_clients c ON c.broker = e.broker AND c.client = e.client
    LEFT JOIN shifted_followers f ON f.broker = e.broker
)
SELECT kind,
    count_if(reason = 'sure') AS all_sure,
    count_if(reason = 'client') AS all_after_client,
    count_if(reason = 'follower') AS all_after_follower,
    count_if(differs AND reason = 'sure') AS differing_sure,
    count_if(differs AND reason = 'client') AS differing_after_client,
    count_if(differs AND reason = 'follower') AS differing_after_follower
FROM reasons
GROUP BY kind
ORDER BY kind
