-- purgatory_udf/answers/sql/diagnosis/delayed_requests.sql
-- Requests that a broker answered late because it stood still: recorded waits over most of that time.
--
-- Reads:       recorded
-- Parameters:  :broker
--              :from_us and :until_us, the time in microseconds since the epoch

SELECT kind, count(*) AS requests, max(recorded_remote_ms + recorded_local_ms) AS longest_ms
FROM recorded
WHERE broker = :broker AND unix_micros(started_at) < :until_us
    AND unix_micros(started_at) + (recorded_remote_ms + recorded_local_ms) * 1000 > :from_us
    AND (recorded_remote_ms + recorded_local_ms) * 2000 >= :until_us - greatest(:from_us, unix_micros(started_at))
    AND (recorded_remote_ms + recorded_local_ms) * 1000 >= (:until_us - :from_us) * 0.3
GROUP BY kind
ORDER BY kind
