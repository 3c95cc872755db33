-- purgatory_udf/answers/sql/diagnosis/leader_moves.sql
-- Partitions that got another leader.
--
-- Reads:    events
-- Columns:  topic, partition, time_us, leader (the new one), former

WITH leaders AS (
    SELECT e.topic, e.partition, e.time_us, e.seq, coalesce(e.broker, 0) AS leader,
        lag(coalesce(e.broker, 0)) OVER (PARTITION BY e.topic, e.partition ORDER BY e.time_us, e.seq) AS former
    FROM events e
    WHERE e.type = 'partition' AND e.change = 'leader'
)
SELECT topic, partition, time_us, leader, former
FROM leaders
WHERE leader <> former
ORDER BY time_us, topic, partition
