-- purgatory_udf/answers/sql/views/below_min_isr.sql
-- The periods in which a partition had fewer in-sync replicas than `min.insync.replicas`.
--
-- Reads:    in_sync_versions
-- Columns:  broker (the leader), topic, partition, since_us, until_us (null if it lasted to the end), in_sync, min_isr;
--           replica, the assigned replica with the lowest ID that was out of sync, and `missing`, all of them

WITH known AS (
    -- Without an assignment, the set before the present one takes its place.
    SELECT v.*, coalesce(replicas, lag(in_sync) OVER (PARTITION BY broker, topic, partition ORDER BY place)) AS assigned
    FROM in_sync_versions v
)
SELECT broker, topic, partition, since_us, until_us, in_sync, min_isr,
    array_sort(array_except(assigned, in_sync)) AS missing
FROM known
WHERE size(in_sync) < min_isr
