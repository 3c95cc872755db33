-- purgatory_udf/answers/sql/diagnosis/throttles.sql
-- Times for which a replication quota throttled a follower: one row per second of its throttled fetches, and one per
-- `throttled` change.
--
-- Reads:       events
-- Parameters:  :last_us, the end of the trace in microseconds since the epoch
-- Columns:     replica, broker (the leader), topic, partition, start_us, end_us

WITH fetched AS (
    SELECT replica_id AS replica, coalesce(broker, 0) AS broker, time_us, explode(partitions) AS part
    FROM events
    WHERE type = 'fetch' AND replica_id >= 0
),
changes AS (
    SELECT e.replica_id AS replica, coalesce(e.broker, 0) AS broker, e.topic, e.partition, e.time_us, e.change,
        lead(e.time_us) OVER (
            PARTITION BY e.replica_id, coalesce(e.broker, 0), e.topic, e.partition ORDER BY e.time_us, e.seq
        ) AS next_us
    FROM events e
    WHERE e.type = 'partition' AND e.change IN ('throttled', 'unthrottled')
)
SELECT replica, broker, part.topic AS topic, part.partition AS partition, min(time_us) AS start_us,
    max(time_us) AS end_us
FROM fetched
WHERE part.throttled
GROUP BY replica, broker, part.topic, part.partition, CAST(floor(time_us / 1000000) AS BIGINT)
UNION ALL
SELECT replica, broker, topic, partition, time_us, coalesce(next_us, :last_us)
FROM changes
WHERE change = 'throttled'
