-- purgatory_udf/answers/sql/diagnosis/broker_gaps.sql
-- Times for which a broker handled no request at all.
--
-- Reads:       events
-- Parameters:  :longest_ms, the longest time without a request that is usual, in milliseconds
-- Columns:     broker, start_us (the last request), end_us (the next one), stopped (whether its process ended meanwhile)

WITH handled AS (
    SELECT coalesce(broker, 0) AS broker, time_us, seq, type <> 'partition' AS is_request,
        type = 'partition' AND change = 'stopped' AS is_stop
    FROM events
    WHERE type NOT IN ('clock', 'topic', 'group_loaded', 'group_unloaded', 'group_stopped')
),
numbered AS (
    SELECT h.*, sum(CASE WHEN is_request THEN 1 ELSE 0 END) OVER (PARTITION BY broker ORDER BY time_us, seq) AS requests
    FROM handled h
),
last_ones AS (
    SELECT broker, requests, min(time_us) AS time_us, max(CASE WHEN is_stop THEN 1 ELSE 0 END) AS stops
    FROM numbered
    WHERE requests > 0
    GROUP BY broker, requests
),
followed AS (
    SELECT l.*, lead(time_us) OVER (PARTITION BY broker ORDER BY requests) AS next_us FROM last_ones l
)
SELECT broker, time_us AS start_us, next_us AS end_us, stops > 0 AS stopped
FROM followed
WHERE next_us - time_us > :longest_ms * 1000
ORDER BY start_us, broker
