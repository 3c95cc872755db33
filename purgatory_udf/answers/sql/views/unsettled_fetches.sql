-- purgatory_udf/answers/sql/views/unsettled_fetches.sql
-- Waiting fetches of consumers that are not in `found_data`, and those of followers with a throttled partition.
--
-- Reads:    waited, found_data, request_parts, events
-- Columns:  operation_id, broker, client_id, start_us, end_us, trigger, min_bytes, replica_id, is_committed;
--           is_whole, whether all its partitions are in `request_parts`

WITH throttled AS (
    SELECT DISTINCT operation_id FROM request_parts WHERE NOT is_produce AND throttled
),
-- Found fetches are removed first: few are left for the join with `waited`. With DISTINCT, DuckDB keeps this order.
fetches AS (
    SELECT DISTINCT e.seq, e.min_bytes, e.replica_id, e.isolation = 'read_committed' AS is_committed
    FROM events e
    WHERE e.type = 'fetch' AND (e.replica_id < 0 OR e.seq IN (SELECT operation_id FROM throttled))
        AND NOT EXISTS (SELECT 1 FROM found_data f WHERE f.operation_id = e.seq)
)
SELECT w.operation_id, w.broker, w.client_id, w.start_us, w.end_us, w.trigger, e.min_bytes, e.replica_id, e.is_committed,
    coalesce(e.replica_id < 0 AND e.min_bytes <= 1 AND w.completed_by <> 'min_bytes', false) AS is_whole
FROM fetches e
JOIN waited w ON w.operation_id = e.seq
-- A remote fetch waits for remote storage only.
WHERE w.kind = 'fetch'
