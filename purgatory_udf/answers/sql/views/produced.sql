-- purgatory_udf/answers/sql/views/produced.sql
-- The partitions of produce requests, one row per request and partition. Several queries read them, and reading lists of
-- partitions costs most of their time.
--
-- Reads:  events

SELECT seq AS operation_id, broker, time_us, acks, client_id, part.topic AS topic, part.partition AS partition,
    part.last_offset AS last_offset, part.bytes AS bytes, part.error AS error
FROM (
    SELECT seq, coalesce(broker, 0) AS broker, time_us, acks, client_id, explode(partitions) AS part
    FROM events
    WHERE type = 'produce'
) parts
