-- purgatory_udf/answers/sql/views/appends.sql
-- The appends to each partition in offset order. `reached` is the log end offset after the append, `position` the number
-- of bytes appended up to there. A produce repeats an append that an earlier `log_end` event records: it counts once.
--
-- Reads:    produced, events
-- Columns:  `base`, the log end offset before the append, null for the first one; first_us, the first time at which the
--           log reached this offset or a later one

WITH recorded AS (
    SELECT broker, time_us, operation_id AS seq, client_id, topic, partition, last_offset + 1 AS reached, bytes
    FROM produced
    WHERE error = 'NONE'
    UNION ALL
    SELECT coalesce(e.broker, 0), e.time_us, e.seq, NULL, e.topic, e.partition, e.offset, coalesce(e.bytes, 0)
    FROM events e
    WHERE e.type = 'partition' AND e.change = 'log_end'
),
numbered AS (
    SELECT r.*,
        row_number() OVER (PARTITION BY broker, topic, partition, reached ORDER BY time_us, seq) AS times,
        max(client_id) OVER (PARTITION BY broker, topic, partition, reached) AS producer
    FROM recorded r
)
SELECT broker, topic, partition, time_us, producer AS client_id, reached, bytes,
    sum(bytes) OVER in_order AS position,
    lag(reached) OVER in_order AS base,
    min(time_us) OVER (
        PARTITION BY broker, topic, partition ORDER BY reached ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
    ) AS first_us
FROM numbered
WHERE times = 1
WINDOW in_order AS (PARTITION BY broker, topic, partition ORDER BY reached)
