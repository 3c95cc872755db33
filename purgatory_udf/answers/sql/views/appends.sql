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
-- Both windows have the same order, so that one sort suffices.
ordered AS (
    SELECT r.*,
        lag(reached) OVER (PARTITION BY broker, topic, partition ORDER BY reached, time_us, seq) AS base,
        min(time_us) OVER (
            PARTITION BY broker, topic, partition ORDER BY reached, time_us, seq
            ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS first_us
    FROM recorded r
)
SELECT broker, topic, partition, time_us, reached, bytes, base, first_us
FROM ordered
WHERE base IS NULL OR base <> reached
