-- purgatory_udf/answers/sql/views/met_conditions.sql
-- The conditions that produces and fetches waited for, with the time from which they waited for each. Fetches that waited
-- for data only are in `data_waits`.
--
-- Reads:    conditions, first_data_times
-- Columns:  operation_id; cause, a number of `wait_causes`; replica; partition_number, of `in_sync_partitions`; from_us,
--           when the condition before it was met, or the wait started; met_us; is_last, whether no condition was met later;
--           of the last one, end_us, the end of the wait, and rest, the cause of a fetch's wait from there to its end

WITH unordered AS (
    SELECT c.*, CAST(NULL AS INT) AS rest FROM conditions c
    UNION ALL
    SELECT f.operation_id, f.start_us, f.end_us, 1, f.met_us, 2, false, NULL, NULL, f.rest
    FROM first_data_times f
    JOIN (SELECT DISTINCT operation_id FROM conditions) s ON s.operation_id = f.operation_id
)
-- All columns are numbers: this sorts the conditions of all operations.
SELECT operation_id, cause, replica, partition_number, coalesce(lag(met_us) OVER in_order, start_us) AS from_us, met_us,
    end_us, lead(met_us) OVER in_order IS NULL AS is_last, max(rest) OVER in_order AS rest
FROM unordered
WINDOW in_order AS (
    PARTITION BY operation_id ORDER BY met_us, later DESC, is_trigger DESC, partition_number, replica
)
