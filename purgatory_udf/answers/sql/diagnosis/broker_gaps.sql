-- purgatory_udf/answers/sql/diagnosis/broker_gaps.sql
-- Times for which a broker handled no request at all.
--
-- Reads:       events
-- Parameters:  :longest_ms, the longest time without a request that is usual, in milliseconds
--              :expected, the number of requests that must have been expected if the broker was busy
-- Columns:     broker, start_us (the last request), end_us (the next one), stopped (whether its process ended meanwhile),
--              busy (whether its rate of requests in the 5 s before leads to `expected` requests in this time),
--              fetched (whether the busy broker fetched as a follower in the middle half of this time)

WITH handled AS (
    SELECT coalesce(broker, 0) AS broker, time_us, seq, type <> 'partition' AS is_request,
        type = 'partition' AND change = 'stopped' AS is_stop
    FROM events
    WHERE type NOT IN ('clock', 'topic', 'group_loaded', 'group_unloaded', 'group_stopped')
),
numbered AS (
    SELECT h.*, sum(CASE WHEN is_request THEN 1 ELSE 0 END) OVER (PARTITION BY broker ORDER BY time_us, seq) AS requests,
        sum(CASE WHEN is_request THEN 1 ELSE 0 END)
            OVER (PARTITION BY broker ORDER BY time_us RANGE BETWEEN 5000000 PRECEDING AND CURRENT ROW) AS recent
    FROM handled h
),
last_ones AS (
    SELECT broker, requests, min(time_us) AS time_us, min(recent) AS recent,
        max(CASE WHEN is_stop THEN 1 ELSE 0 END) AS stops
    FROM numbered
    WHERE requests > 0
    GROUP BY broker, requests
),
followed AS (
    SELECT l.*, lead(time_us) OVER (PARTITION BY broker ORDER BY requests) AS next_us FROM last_ones l
),
gaps AS (
    SELECT broker, time_us AS start_us, next_us AS end_us, stops > 0 AS stopped,
        recent * (next_us - time_us) >= :expected * 5000000 AS busy
    FROM followed
    WHERE next_us - time_us > :longest_ms * 1000
),
active AS (
    SELECT g.broker, g.start_us FROM gaps g
    JOIN (SELECT replica_id, time_us FROM events WHERE type = 'fetch' AND replica_id >= 0) f ON f.replica_id = g.broker
        AND f.time_us > g.start_us + (g.end_us - g.start_us) / 4 AND f.time_us < g.end_us - (g.end_us - g.start_us) / 4
    WHERE g.busy
    GROUP BY g.broker, g.start_us
)
SELECT g.broker, g.start_us, g.end_us, g.stopped, g.busy, a.broker IS NOT NULL AS fetched
FROM gaps g
LEFT JOIN active a ON a.broker = g.broker AND a.start_us = g.start_us
ORDER BY g.start_us, g.broker
