-- purgatory_udf/answers/sql/views/produce_sizes.sql
-- Produces with acks=all: the timeout and the size of each.
--
-- Reads:    produced
-- Columns:  operation_id, timeout_ms, bytes

SELECT operation_id, max(timeout_ms) AS timeout_ms, CAST(sum(bytes) AS BIGINT) AS bytes
FROM produced
WHERE acks = -1
GROUP BY operation_id
