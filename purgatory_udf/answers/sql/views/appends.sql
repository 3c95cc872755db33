-- purgatory_udf/answers/sql/views/appends.sql
-- The appends to each partition in offset order. `reached` is the log end offset after the append. A produce repeats an
-- append that an earlier `log_end` event records: it counts once.
--
-- Reads:    produced, events
-- Columns:  `base`, the log end offset before the append, null for the first one; first_us, the first time at which the
--           log reached this offset or a later one

WITH recorded AS (
    SELECT broker, time_us, operation_id AS seq, topic, partition, reached, bytes
    FROM produced
    WHERE is_appended
    UNION ALL
    SELECT coalesce(e.broker, 0), e.time_us, e.seq, e.topic, e.partition, e.offset, coalesce(e.bytes, 0)
    FROM events e
    WHERE e.type = 'partition' AND e.change = 'log_end'
),
ordered AS (
    SELECT r.*, lag(reached) OVER in_order AS base, lead(time_us) OVER in_order AS next_us
    FROM recorded r
    WINDOW in_order AS (PARTITION BY broker, topic, partition ORDER BY reached, time_us, seq)
),
-- Partitions with an append that is earlier than one at a lower offset. Usually there are none.
unordered AS (
    SELECT DISTINCT broker, topic, partition FROM ordered WHERE next_us < time_us
),
timed AS (
    SELECT o.broker, o.topic, o.partition, o.time_us, o.reached, o.bytes, o.base, o.time_us AS first_us
    FROM ordered o
    LEFT JOIN unordered u ON u.broker = o.broker AND u.topic = o.topic AND u.partition = o.partition
    WHERE u.topic IS NULL
    UNION ALL
    SELECT o.broker, o.topic, o.partition, o.time_us, o.reached, o.bytes, o.base, min(o.time_us) OVER (
            PARTITION BY o.broker, o.topic, o.partition ORDER BY o.reached, o.time_us, o.seq
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        )
    FROM ordered o
    JOIN unordered u ON u.broker = o.broker AND u.topic = o.topic AND u.partition = o.partition
)
SELECT broker, topic, partition, time_us, reached, bytes, base, first_us
FROM timed
WHERE base IS NULL OR base <> reached
