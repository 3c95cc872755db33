-- purgatory_udf/answers/sql/views/first_data_times.sql
-- When each waiting fetch that found data had the first of it.
--
-- Reads:    fetch_data
-- Columns:  operation_id, broker, client_id, start_us, end_us: the fetch; met_us, the time of the first data, within the wait;
--           rest, the cause of its wait from there to the end, a number of `wait_causes`

SELECT operation_id, broker, client_id, start_us, end_us, greatest(start_us, least(end_us, first_us)) AS met_us,
    -- A throttled replication, an open transaction, or the high watermark.
    CASE WHEN replica_id >= 0 THEN 7 WHEN is_committed THEN 6 ELSE 5 END AS rest
FROM (
    SELECT DISTINCT operation_id, broker, client_id, start_us, end_us, first_us, replica_id, is_committed
    FROM fetch_data
    WHERE is_summed
    UNION ALL
    SELECT operation_id, broker, client_id, start_us, end_us, first_us, replica_id, is_committed
    FROM fetch_data
    WHERE NOT is_summed
) fetches
