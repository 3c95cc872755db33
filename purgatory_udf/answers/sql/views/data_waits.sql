-- purgatory_udf/answers/sql/views/data_waits.sql
-- Waiting fetches that waited for data only, and then for the rest: most fetches. The others are in `met_conditions`.
--
-- Reads:    first_data_times, conditions
-- Columns:  as in `first_data_times`

SELECT f.operation_id, f.broker, f.client_id, f.start_us, f.end_us, f.met_us, f.rest
FROM first_data_times f
WHERE NOT EXISTS (SELECT 1 FROM conditions c WHERE c.operation_id = f.operation_id)
