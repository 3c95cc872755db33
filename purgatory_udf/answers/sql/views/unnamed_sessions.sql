-- purgatory_udf/answers/sql/views/unnamed_sessions.sql
-- Sessions whose key does not name one member: few, or none.
--
-- Reads:    waited, member_keys
-- Columns:  operation_id

SELECT w.operation_id
FROM waited w
LEFT JOIN member_keys m ON m.key = w.key
-- Sessions that no request started, such as those of a group that a broker loaded, have negative IDs.
WHERE w.kind IN ('heartbeat', 'session') AND w.operation_id >= 0 AND NOT coalesce(m.is_unique, false)
