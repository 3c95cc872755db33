-- purgatory_udf/answers/sql/views/fetch_data.sql
-- When the data that a waiting fetch requests were appended at the leader; they may be readable later only, because a
-- consumer reads up to the high watermark. One row per fetch and partition behind whose offset
-- anything was appended by the end of the wait; for a fetch that one record satisfies, only the partition that ended it.
--
-- A fetch with `min_bytes` of 0 or 1 has enough with the first append behind one of its offsets. For others, the bytes of
-- all partitions add up.
--
-- Reads:    found_data, first_data, appends
-- Columns:  operation_id, broker, client_id, start_us, end_us, replica_id, is_committed: the fetch; first_us, when the first
--           of these records was appended; enough_us, when `min_bytes` had been appended, or null; topic, partition and
--           needed: a partition with such records, and the offset at which the high watermark exposes them; is_trigger,
--           whether the partition ended the wait; is_summed, whether the fetch may have several rows

WITH
-- `position` is the number of bytes appended up to there.
positioned AS (
    SELECT a.broker, a.topic, a.partition, a.reached, a.time_us,
        sum(a.bytes) OVER (PARTITION BY a.broker, a.topic, a.partition ORDER BY a.reached) AS position
    FROM appends a
    JOIN (SELECT DISTINCT broker, topic, partition FROM first_data WHERE min_bytes > 1) f ON f.broker = a.broker
        AND f.topic = a.topic AND f.partition = a.partition
),
-- Bytes up to the fetch offset, and up to the log end when the fetch started.
positions AS (
    SELECT p.*, CAST(NULL AS BIGINT) AS operation_id FROM positioned p
    UNION ALL
    SELECT broker, topic, partition, fetch_offset, start_us, CAST(NULL AS BIGINT), operation_id FROM first_data WHERE min_bytes > 1
),
known_positions AS (
    SELECT operation_id, topic, partition,
        coalesce(max(position) OVER (PARTITION BY broker, topic, partition ORDER BY reached), 0) AS offset_position,
        coalesce(max(position) OVER (PARTITION BY broker, topic, partition ORDER BY time_us), 0) AS start_position,
        max(reached) OVER (PARTITION BY broker, topic, partition ORDER BY time_us) AS start_reached
    FROM positions
),
summed_parts AS (
    SELECT f.*, k.offset_position, k.start_position, k.start_reached
    FROM first_data f
    JOIN known_positions k ON k.operation_id = f.operation_id AND k.topic = f.topic AND k.partition = f.partition
),
-- An equality join by tenths of a second; a join by ranges alone would compare all fetches with all appends.
summed_bins AS (
    SELECT operation_id, broker, topic, partition, start_us, end_us, max_bytes, offset_position,
        explode(sequence(CAST(floor(start_us / 100000) AS BIGINT), CAST(floor(end_us / 100000) AS BIGINT), 1)) AS bin
    FROM summed_parts
),
steps AS (
    SELECT operation_id, topic, partition, start_us AS time_us, start_reached AS reached,
        least(max_bytes, greatest(0, start_position - offset_position)) AS readable
    FROM summed_parts
    UNION ALL
    SELECT s.operation_id, s.topic, s.partition, a.time_us, a.reached, least(s.max_bytes, a.position - s.offset_position)
    FROM summed_bins s
    JOIN positioned a ON a.broker = s.broker AND a.topic = s.topic AND a.partition = s.partition
        AND CAST(floor(a.time_us / 100000) AS BIGINT) = s.bin AND a.time_us > s.start_us AND a.time_us <= s.end_us
    WHERE a.position > s.offset_position
),
grown AS (
    SELECT s.*,
        readable - coalesce(lag(readable) OVER (PARTITION BY operation_id, topic, partition ORDER BY time_us, reached), 0)
            AS growth
    FROM steps s
),
totals AS (
    SELECT g.*, sum(growth) OVER (PARTITION BY operation_id ORDER BY time_us) AS total FROM grown g
),
enough AS (
    SELECT t.operation_id, min(t.time_us) AS enough_us
    FROM totals t
    JOIN (SELECT DISTINCT operation_id, min_bytes FROM summed_parts) f ON f.operation_id = t.operation_id
    WHERE t.total >= f.min_bytes
    GROUP BY t.operation_id
),
summed AS (
    SELECT s.operation_id, e.enough_us, s.topic, s.partition, max(s.reached) AS needed
    FROM steps s
    LEFT JOIN enough e ON e.operation_id = s.operation_id
    WHERE s.readable > 0 AND (e.enough_us IS NULL OR s.time_us <= e.enough_us)
    GROUP BY s.operation_id, e.enough_us, s.topic, s.partition
),
begun AS (
    SELECT operation_id, broker, client_id, start_us, end_us, trigger, replica_id, is_committed, min(first_us) AS first_us
    FROM first_data
    WHERE min_bytes > 1
    GROUP BY operation_id, broker, client_id, start_us, end_us, trigger, replica_id, is_committed
),
single AS (
    SELECT operation_id, broker, client_id, start_us, end_us, replica_id, is_committed, first_us, topic, partition, fetch_offset,
        true AS is_trigger
    FROM found_data
    UNION ALL
    SELECT operation_id, broker, client_id, start_us, end_us, replica_id, is_committed, first_us, topic, partition, fetch_offset,
        coalesce(trigger = topic || '-' || CAST(partition AS STRING), false)
    FROM first_data
    WHERE place = 1 AND min_bytes <= 1
)
SELECT operation_id, broker, client_id, start_us, end_us, replica_id, is_committed, first_us, first_us AS enough_us, topic,
    partition, fetch_offset + 1 AS needed, is_trigger, false AS is_summed
FROM single
UNION ALL
SELECT b.operation_id, b.broker, b.client_id, b.start_us, b.end_us, b.replica_id, b.is_committed, b.first_us, s.enough_us,
    s.topic, s.partition, s.needed, coalesce(b.trigger = s.topic || '-' || CAST(s.partition AS STRING), false), true
FROM begun b
JOIN summed s ON s.operation_id = b.operation_id
