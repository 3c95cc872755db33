-- Records delivered to share groups, by group and delivery count: repeated deliveries first.
--
-- Reads:       metrics_deliveries
-- Parameters:  :top, maximum number of rows

SELECT d.group AS group, delivery_count, sum(records) AS records, sum(accepted) AS accepted, sum(released) AS released,
    sum(rejected) AS rejected, sum(lock_expired) AS lock_expired, sum(session_ended) AS session_ended,
    sum(archived) AS archived, sum(held_ms) / sum(records) AS mean_held_ms, max(max_held_ms) AS max_held_ms
FROM metrics_deliveries d
GROUP BY d.group, delivery_count
ORDER BY delivery_count DESC, d.group
LIMIT :top
