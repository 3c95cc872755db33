-- purgatory_udf/answers/sql/diagnosis/rebalances.sql
-- Rebalances in time order, with their times in microseconds since the epoch.
--
-- Reads:  rebalances

SELECT r.broker, r.group AS group, unix_micros(started_at) AS started_us, unix_micros(ended_at) AS ended_us, reason,
    missing, joined, last_to_join, after_end
FROM rebalances r
ORDER BY started_us, r.group
