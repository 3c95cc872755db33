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
        type = 'partition' AND change = 'stopped' AS is_stop,
        CAST(floor(time_us / (:longest_ms * 1000)) AS BIGINT) AS bin
    FROM events
    WHERE type NOT IN ('clock', 'topic', 'group_loaded', 'group_unloaded', 'group_stopped')
),
-- A time without requests that is longer than a bin lies between the last request of a bin and the first of a later one.
-- Events are read again for `near`: `handled` would be kept in memory for both.
bins AS (
    SELECT broker, bin, min(time_us) AS first_us, max(time_us) AS last_us
    FROM (
        SELECT coalesce(broker, 0) AS broker, time_us, CAST(floor(time_us / (:longest_ms * 1000)) AS BIGINT) AS bin
        FROM events
        WHERE type NOT IN ('partition', 'clock', 'topic', 'group_loaded', 'group_unloaded', 'group_stopped')
    ) requests
    GROUP BY broker, bin
),
next_bins AS (
    SELECT b.*, lead(first_us) OVER (PARTITION BY broker ORDER BY bin) AS next_us FROM bins b
),
silences AS (
    SELECT broker, last_us AS start_us, next_us AS end_us FROM next_bins WHERE next_us - last_us > :longest_ms * 1000
),
-- Only events around these times are numbered, which are few.
around AS (
    SELECT DISTINCT broker, explode(sequence(
        CAST(floor((start_us - 5000000) / (:longest_ms * 1000)) AS BIGINT),
        CAST(floor(end_us / (:longest_ms * 1000)) AS BIGINT), CAST(1 AS BIGINT)
    )) AS bin
    FROM silences
),
near AS (
    SELECT h.broker, h.bin, h.time_us, h.seq, h.is_request, h.is_stop
    FROM handled h
    JOIN around a ON a.broker = h.broker AND a.bin = h.bin
),
numbered AS (
    SELECT n.*, sum(CASE WHEN is_request THEN 1 ELSE 0 END) OVER (PARTITION BY broker ORDER BY time_us, seq) AS requests
    FROM near n
),
last_ones AS (
    SELECT broker, requests, min(time_us) AS time_us, max(CASE WHEN is_stop THEN 1 ELSE 0 END) AS stops
    FROM numbered
    WHERE requests > 0
    GROUP BY broker, requests
),
followed AS (
    SELECT l.*, lead(time_us) OVER (PARTITION BY broker ORDER BY requests) AS next_us FROM last_ones l
),
quiet AS (
    SELECT f.broker, f.requests, s.start_us, s.end_us, stops > 0 AS stopped
    FROM followed f
    JOIN silences s ON s.broker = f.broker AND s.start_us = f.time_us AND s.end_us = f.next_us
),
-- The fewest requests in the 5 s before the last request, or before an event after it: before the next request, the later
-- an event is, the fewer requests are in the 5 s before it. The bins make this an equality join.
latest AS (
    SELECT q.broker, q.requests, max(n.time_us) AS time_us
    FROM quiet q
    JOIN numbered n ON n.broker = q.broker AND n.requests = q.requests
    GROUP BY q.broker, q.requests, n.time_us = q.end_us
),
recent_bins AS (
    SELECT broker, requests, time_us, explode(sequence(
        CAST(floor((time_us - 5000000) / (:longest_ms * 1000)) AS BIGINT),
        CAST(floor(time_us / (:longest_ms * 1000)) AS BIGINT), CAST(1 AS BIGINT)
    )) AS bin
    FROM latest
),
counted AS (
    SELECT b.broker, b.requests, b.time_us, count(n.time_us) AS recent
    FROM recent_bins b
    LEFT JOIN near n ON n.broker = b.broker AND n.bin = b.bin AND n.is_request AND n.time_us >= b.time_us - 5000000
        AND n.time_us <= b.time_us
    GROUP BY b.broker, b.requests, b.time_us
),
fewest AS (
    SELECT broker, requests, min(recent) AS recent FROM counted GROUP BY broker, requests
),
gaps AS (
    SELECT q.broker, q.start_us, q.end_us, q.stopped, f.recent * (q.end_us - q.start_us) >= :expected * 5000000 AS busy
    FROM quiet q
    JOIN fewest f ON f.broker = q.broker AND f.requests = q.requests
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
