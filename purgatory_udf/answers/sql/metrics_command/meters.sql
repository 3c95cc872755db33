-- The totals of Kafka's expiration meters, and the last window with the most marks. Meters of single partitions come
-- last.
--
-- Reads:       metrics_expires
-- Parameters:  :top, maximum number of rows

SELECT mbean, broker, topic, sum(expired) AS total, max(per_second) AS busiest,
    max_by(window_start, struct(expired, window_start)) AS busiest_at
FROM metrics_expires
GROUP BY mbean, broker, topic
ORDER BY topic IS NOT NULL, total DESC, mbean, broker
LIMIT :top
