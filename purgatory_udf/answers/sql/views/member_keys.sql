-- purgatory_udf/answers/sql/views/member_keys.sql
-- The keys of members' sessions, `group-member`. Names may contain hyphens, so members of two groups may have one key.
--
-- Reads:    events
-- Columns:  key, group_id, member; is_unique, whether only one member has the key

SELECT concat(m.group_id, '-', m.member) AS key, max(m.group_id) AS group_id, max(m.member) AS member,
    count(*) = 1 AS is_unique
FROM (
    SELECT DISTINCT e.group AS group_id, coalesce(nullif(e.member_id, ''), e.assigned_member_id) AS member
    FROM events e
    WHERE e.group IS NOT NULL
) m
GROUP BY concat(m.group_id, '-', m.member)
