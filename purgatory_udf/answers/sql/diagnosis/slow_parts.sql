-- purgatory_udf/answers/sql/diagnosis/slow_parts.sql
-- Waits for a follower or for the minimum in-sync set that are longer than usual, by replica, topic and tenth of a second.
--
-- Reads:       replica_waits
-- Parameters:  :slow_ms, the least wait in milliseconds that counts
--              :last_us, the end of the trace in microseconds since the epoch; what lies behind it is not counted
-- Columns:     cause, replica, broker (the leader), topic; start_us and end_us, from the first to the last of these waits; parts,
--              wait_ms (their sum)

WITH parts AS (
    SELECT cause, replica, broker, topic, start_us,
        least(end_us, :last_us) AS end_us,
        least(wait_ms, CAST(floor((:last_us - start_us) / 1000) AS BIGINT)) AS wait_ms
    FROM replica_waits
)
SELECT cause, replica, broker, topic,
    min(start_us) AS start_us,
    max(end_us) AS end_us,
    count(*) AS parts,
    sum(wait_ms) AS wait_ms
FROM parts
WHERE wait_ms >= :slow_ms
GROUP BY cause, replica, broker, topic, CAST(floor(start_us / 100000) AS BIGINT)
ORDER BY cause, replica, start_us, broker, topic
