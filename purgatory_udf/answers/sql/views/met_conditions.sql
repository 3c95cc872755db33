-- purgatory_udf/answers/sql/views/met_conditions.sql
-- The conditions that produces and fetches waited for, with the time from which they waited for each. Fetches that waited
-- for data only are in `data_waits`.
--
-- Reads:    conditions, first_data_times, waited
-- Columns:  as in `conditions`, and kind, broker, client_id; from_us, when the condition before it was met, or the wait
--           started; is_last, whether no condition was met later; of the last one, end_us, the end of the wait, and rest,
--           the cause of a fetch's wait from there to its end

WITH unordered AS (
    SELECT c.*, CAST(NULL AS STRING) AS rest FROM conditions c
    UNION ALL
    SELECT f.operation_id, 'no_data', f.met_us, 2, NULL, NULL, NULL, f.rest
    FROM first_data_times f
    JOIN (SELECT DISTINCT operation_id FROM conditions) s ON s.operation_id = f.operation_id
)
SELECT c.operation_id, w.kind, w.broker, w.client_id, c.cause, c.replica, c.topic, c.partition,
    coalesce(lag(met_us) OVER in_order, w.start_us) AS from_us, c.met_us, w.end_us,
    lead(met_us) OVER in_order IS NULL AS is_last,
    max(c.rest) OVER in_order AS rest
FROM unordered c
JOIN waited w ON w.operation_id = c.operation_id
WINDOW in_order AS (
    PARTITION BY c.operation_id
    ORDER BY met_us, later DESC, CASE WHEN topic || '-' || CAST(partition AS STRING) = w.trigger THEN 0 ELSE 1 END,
        topic, partition, replica
)
