-- purgatory_udf/answers/sql/views/appends.sql
-- The appends to each partition in offset order. `reached` is the log end offset after the append, `position` the number
-- of bytes appended up to there. A produce repeats an append that an earlier `log_end` event records: it counts once.
--
-- Reads:  events

WITH recorded AS (
    SELECT broker, time_us, seq, client_id, part.topic AS topic, part.partition AS partition,
        part.last_offset + 1 AS reached, part.bytes AS bytes
    FROM (
        SELECT coalesce(broker, 0) AS broker, time_us, seq, client_id, explode(partitions) AS part
        FROM events
        WHERE type = 'produce'
    ) produced
    WHERE part.error = 'NONE'
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
    sum(bytes) OVER (PARTITION BY broker, topic, partition ORDER BY reached) AS position
FROM numbered
WHERE times = 1
