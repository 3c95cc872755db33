-- purgatory_udf/answers/sql/views/produced.sql
-- The partitions of produce requests, one row per request and partition.
--
-- Reads:  request_parts

SELECT operation_id, broker, time_us, topic, partition, reached, bytes, is_appended
FROM request_parts
WHERE is_produce
