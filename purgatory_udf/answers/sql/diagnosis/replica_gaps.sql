-- purgatory_udf/answers/sql/diagnosis/replica_gaps.sql
-- Times for which a follower sent no fetch to a leader, although its last one must have been answered.
--
-- Reads:       events
-- Parameters:  :slack_ms, how much longer than `max_wait_ms` it may take to the next fetch, in milliseconds
-- Columns:     replica, broker (the leader), start_us (its last fetch), end_us (the next one)

WITH fetches AS (
    SELECT replica_id AS replica, coalesce(broker, 0) AS broker, time_us, max_wait_ms,
        lead(time_us) OVER (PARTITION BY replica_id, coalesce(broker, 0) ORDER BY time_us, seq) AS next_us
    FROM events
    WHERE type = 'fetch' AND replica_id >= 0
)
SELECT replica, broker, time_us AS start_us, next_us AS end_us
FROM fetches
WHERE next_us - time_us > (max_wait_ms + :slack_ms) * 1000
ORDER BY start_us, replica, broker
