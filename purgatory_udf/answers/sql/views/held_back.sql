-- Members of consumer groups (KIP-848) that others waited for: each wait of a member for the partitions of one owner.
--
--   waiting member:  UNRELEASED_PARTITIONS ─────────────────────────► STABLE
--   owner:           STABLE ──► UNREVOKED_PARTITIONS ──► STABLE or REMOVED
--                    started_at                          ended_at: the owner has given the partitions up
--
-- A wait also ends with the next change of the waiting member. Waits that start after the last event are left out,
-- because members count as silent then; those that last longer are `open`.
--
-- Reads:    member_changes, last_event
-- Columns:  member_id, the owner, and its client_id; waiting_member_id and waiting_client_id; partitions, a list

WITH waits AS (
    SELECT c.broker, c.group AS group_id, c.at AS started_at, c.next_at, c.member_id AS waiting_member_id,
        c.client_id AS waiting_client_id, explode(c.held_by) AS held
    FROM member_changes c
),
named AS (
    SELECT broker, group_id, started_at, next_at, waiting_member_id, waiting_client_id, held.topic AS topic,
        held.partition AS partition, held.member_id AS member_id
    FROM waits
),
parts AS (
    SELECT c.broker, c.group AS group_id, c.member_id, c.at AS owned_at, explode(c.assigned) AS part
    FROM member_changes c
    UNION ALL
    SELECT c.broker, c.group AS group_id, c.member_id, c.at AS owned_at, explode(c.revoking) AS part
    FROM member_changes c
),
owned AS (
    SELECT broker, group_id, member_id, owned_at, part.topic AS topic, part.partition AS partition FROM parts
),
releases AS (
    -- The first change of the owner after which it does not own the partition.
    SELECT n.broker, n.group_id, n.started_at, n.waiting_member_id, n.topic, n.partition, n.member_id,
        min(c.at) AS released_at
    FROM named n
    JOIN member_changes c ON c.broker = n.broker AND c.group = n.group_id AND c.member_id = n.member_id
        AND c.at >= n.started_at
    LEFT JOIN owned o ON o.broker = c.broker AND o.group_id = c.group AND o.member_id = c.member_id
        AND o.owned_at = c.at AND o.topic = n.topic AND o.partition = n.partition
    WHERE o.owned_at IS NULL
    GROUP BY n.broker, n.group_id, n.started_at, n.waiting_member_id, n.topic, n.partition, n.member_id
),
held AS (
    SELECT n.broker, n.group_id, n.member_id, n.waiting_member_id, n.started_at,
        max(n.waiting_client_id) AS waiting_client_id,
        array_sort(collect_list(n.topic || '-' || CAST(n.partition AS STRING))) AS partitions,
        count(coalesce(r.released_at, n.next_at)) = count(*) AS has_ended,
        max(least(r.released_at, n.next_at)) AS ended_at,
        min(n.next_at) AS next_at
    FROM named n
    LEFT JOIN releases r ON r.broker = n.broker AND r.group_id = n.group_id AND r.started_at = n.started_at
        AND r.waiting_member_id = n.waiting_member_id AND r.topic = n.topic AND r.partition = n.partition
        AND r.member_id = n.member_id
    GROUP BY n.broker, n.group_id, n.member_id, n.waiting_member_id, n.started_at
),
closed AS (
    SELECT h.*, l.last_at, has_ended AND coalesce(ended_at <= l.last_at, true) AS is_closed
    FROM held h CROSS JOIN (SELECT timestamp_micros(time_us) AS last_at FROM last_event) l
    WHERE coalesce(h.started_at <= l.last_at, true)
)
SELECT h.broker, h.group_id AS group, h.member_id, max(c.client_id) AS client_id, h.waiting_member_id,
    h.waiting_client_id, h.started_at, CASE WHEN h.is_closed THEN h.ended_at END AS ended_at,
    unix_millis(CASE WHEN h.is_closed THEN h.ended_at ELSE h.last_at END) - unix_millis(h.started_at) AS held_ms,
    h.partitions,
    -- At the end of the wait: the change of the owner, or that of the waiting member.
    CASE WHEN NOT h.is_closed THEN 'open'
        ELSE coalesce(max(CASE WHEN c.at = h.ended_at THEN c.reason END), 'another assignment of the waiting member')
    END AS ended_by
FROM closed h
LEFT JOIN member_changes c ON c.broker = h.broker AND c.group = h.group_id AND c.member_id = h.member_id
GROUP BY h.broker, h.group_id, h.member_id, h.waiting_member_id, h.waiting_client_id, h.started_at, h.ended_at,
    h.is_closed, h.last_at, h.partitions
