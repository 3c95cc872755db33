-- The totals of Kafka's expiration meters by the type of their MBean and its tags.
--
-- Reads:  metrics_expires

SELECT regexp_extract(mbean, 'type=([^,]+)', 1) AS type, broker, topic, partition, fetcher, sum(expired) AS expired
FROM metrics_expires
GROUP BY regexp_extract(mbean, 'type=([^,]+)', 1), broker, topic, partition, fetcher
ORDER BY type, broker, topic NULLS FIRST, partition NULLS FIRST, fetcher NULLS FIRST
