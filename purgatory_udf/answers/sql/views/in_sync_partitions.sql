-- purgatory_udf/answers/sql/views/in_sync_partitions.sql
-- The partitions with known in-sync sets, at each leader, with a number in the order of topic and partition. Millions of
-- rows are sorted and joined by this number, which takes a fraction of the time that names take.
--
-- Reads:    in_sync_versions
-- Columns:  number, broker (the leader), topic, partition

SELECT CAST(row_number() OVER (ORDER BY topic, partition, broker) AS INT) AS number, broker, topic, partition
FROM (SELECT DISTINCT broker, topic, partition FROM in_sync_versions) known
