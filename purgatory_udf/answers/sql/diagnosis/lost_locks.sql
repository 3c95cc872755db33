-- purgatory_udf/answers/sql/diagnosis/lost_locks.sql
-- Share fetches of which records were held until their acquisition locks expired, by worker.
--
-- Reads:    share_deliveries
-- Columns:  time_us and end_us (first acquisition, last expiration), records, archived (of these, at the limit on
--           deliveries), held_ms (the longest time for which records of the fetch were held)

SELECT d.group AS group_id, d.client_id, d.member_id AS member, d.operation_id, min(d.topic) AS topic,
    min(unix_micros(d.acquired_at)) AS time_us,
    max(unix_micros(d.ended_at)) AS end_us,
    sum(d.last_offset - d.first_offset + 1) AS records,
    sum(CASE WHEN d.state IN ('ARCHIVING', 'ARCHIVED') THEN d.last_offset - d.first_offset + 1 ELSE 0 END) AS archived,
    max(d.held_ms) AS held_ms
FROM share_deliveries d
WHERE d.ended_by = 'lock_expired' AND NOT d.after_end
GROUP BY d.group, d.client_id, d.member_id, d.operation_id
ORDER BY group_id, client_id, member, time_us
