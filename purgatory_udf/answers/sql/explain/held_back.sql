-- The waits for partitions that members of a consumer group held back, the longest first.
--
-- Reads:       held_back
-- Parameters:  :group and :member, a member ID or client ID; empty for any
--              :top, maximum number of rows

SELECT h.broker, h.group AS group, member_id, client_id, waiting_member_id, waiting_client_id, partitions,
    unix_micros(started_at) AS started_us, held_ms, ended_by
FROM held_back h
WHERE (h.group = :group OR :group = '') AND (member_id = :member OR client_id = :member OR :member = '')
ORDER BY held_ms DESC NULLS LAST, started_at, member_id, waiting_member_id
LIMIT :top
