-- purgatory_udf/answers/sql/views/in_sync_versions.sql
-- The in-sync sets of each partition at its leader, and the time for which each was in force.
--
-- Reads:    events
-- Columns:  broker (the leader), topic, partition, place (1 for the first set), since_us, until_us (null for the last
--           set), in_sync, min_isr; replicas, the assigned replicas where a `leader` event names them

WITH changes AS (
    SELECT coalesce(e.broker, 0) AS broker, e.topic, e.partition, e.time_us, e.seq, e.isr AS in_sync, e.min_isr,
        e.replicas
    FROM events e
    -- With IN, DuckDB would read the lists of all changes first.
    WHERE e.type = 'partition' AND NOT (e.change NOT IN ('leader', 'isr'))
),
counted AS (
    SELECT c.*,
        count(in_sync) OVER so_far AS sets,
        count(min_isr) OVER so_far AS minimums,
        count(replicas) OVER so_far AS assignments
    FROM changes c
    WINDOW so_far AS (PARTITION BY broker, topic, partition ORDER BY time_us, seq)
),
filled AS (
    SELECT broker, topic, partition, time_us, seq, sets,
        max(in_sync) OVER (PARTITION BY broker, topic, partition, sets) AS in_sync,
        max(min_isr) OVER (PARTITION BY broker, topic, partition, minimums) AS min_isr,
        max(replicas) OVER (PARTITION BY broker, topic, partition, assignments) AS replicas
    FROM counted
)
SELECT broker, topic, partition,
    row_number() OVER in_order AS place,
    time_us AS since_us,
    lead(time_us) OVER in_order AS until_us,
    in_sync, min_isr, replicas
FROM filled
WHERE sets > 0
WINDOW in_order AS (PARTITION BY broker, topic, partition ORDER BY time_us, seq)
