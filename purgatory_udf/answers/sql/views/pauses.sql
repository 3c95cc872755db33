-- The times at which brokers stood still. A timer that is due meanwhile fires when its broker resumes; a pause without a
-- `resumed` event ends after the last event.
--
-- Reads:    events, last_event
-- Columns:  broker, paused_us, resumed_us, paused_ms, resumed_ms

WITH marks AS (
    SELECT coalesce(e.broker, 0) AS broker, e.type, e.time_us, unix_millis(timestamp_micros(e.time_us)) AS time_ms,
        count_if(e.type = 'resumed') OVER (
            PARTITION BY coalesce(e.broker, 0) ORDER BY e.time_us, e.seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS number
    FROM events e
    -- With IN, DuckDB would read all columns of all rows first.
    WHERE NOT (e.type NOT IN ('paused', 'resumed'))
),
pairs AS (
    SELECT broker,
        min(CASE WHEN type = 'paused' THEN time_us END) AS paused_us,
        max(CASE WHEN type = 'resumed' THEN time_us END) AS resumed_us,
        min(CASE WHEN type = 'paused' THEN time_ms END) AS paused_ms,
        max(CASE WHEN type = 'resumed' THEN time_ms END) AS resumed_ms
    FROM marks
    GROUP BY broker, number
)
SELECT broker, paused_us, coalesce(resumed_us, l.time_us) AS resumed_us, paused_ms,
    coalesce(resumed_ms, unix_millis(timestamp_micros(l.time_us)) + 1) AS resumed_ms
FROM pairs CROSS JOIN last_event l
WHERE paused_us IS NOT NULL
