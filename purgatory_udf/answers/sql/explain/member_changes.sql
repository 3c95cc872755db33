-- The changes of members of consumer groups (KIP-848) in time order.
--
-- Reads:       member_changes
-- Parameters:  :group and :member, a member ID or client ID; empty for any
--              :top, maximum number of rows

SELECT c.broker, c.group AS group, at_us, member_id, client_id, from_state, to_state, reason, epoch, assigned, revoking,
    held_by, classic
FROM member_changes c
WHERE (c.group = :group OR :group = '') AND (member_id = :member OR client_id = :member OR :member = '')
ORDER BY c.broker, c.group, at_us, CASE WHEN to_state = 'REMOVED' THEN 0 ELSE 1 END, member_id
LIMIT :top
