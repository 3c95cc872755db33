-- purgatory_udf/answers/sql/diagnosis/span.sql
-- The time of the trace up to its last request, and the longest wait that a follower's fetch allowed.
--
-- Other events may be later: dumps of the metadata log and of record batches are taken after a recording.
--
-- Reads:  events

SELECT min(time_us) AS start_us,
    coalesce(
        max(CASE WHEN type NOT IN ('partition', 'clock', 'topic', 'group_loaded', 'group_unloaded', 'group_stopped')
            THEN time_us END),
        max(time_us)
    ) AS end_us,
    max(CASE WHEN replica_id >= 0 THEN max_wait_ms END) AS max_wait_ms
FROM events
