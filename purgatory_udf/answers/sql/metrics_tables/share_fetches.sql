-- Share fetches by broker and share group: how they ended, and waits that the broker could have ended earlier.
--
-- Reads:    ended, events
-- Columns:  `unwoken`, expired fetches with records although one byte was enough: what became available, such as by a
--           release, woke no fetch; `after_leader_loss`, fetches that expired after the broker had stopped leading one of
--           their partitions

WITH fetches AS (
    SELECT e.operation_id, e.broker, v.group AS group_id, e.expired, e.watched, e.wait_ms, e.after_end, v.partitions,
        e.expired AND e.bytes > 0 AS has_records,
        e.expired AND e.bytes > 0 AND v.min_bytes <= 1 AS unwoken,
        unix_micros(e.started_at) AS started_us, unix_micros(e.ended_at) AS ended_us
    FROM ended e
    JOIN events v ON v.seq = e.operation_id
    WHERE e.kind = 'share_fetch'
),
places AS (
    SELECT operation_id, broker, started_us, ended_us, part.topic AS topic, part.partition AS number
    FROM (
        SELECT operation_id, broker, started_us, ended_us, explode(partitions) AS part FROM fetches WHERE expired
    ) exploded
),
lost AS (
    SELECT DISTINCT p.operation_id
    FROM places p
    JOIN events c ON c.broker = p.broker AND c.topic = p.topic AND c.partition = p.number
        AND c.time_us > p.started_us AND c.time_us <= p.ended_us
    -- With IN, DuckDB would read all columns of all changes first.
    WHERE c.type = 'partition' AND NOT (c.change NOT IN ('not_leader', 'follower'))
)
SELECT f.broker, f.group_id AS group, count(*) AS operations, count_if(NOT f.watched) AS on_arrival,
    count_if(f.watched AND NOT f.expired) AS after_a_wait, count_if(f.expired) AS expired,
    count_if(f.has_records) AS with_records, count_if(f.unwoken) AS unwoken,
    count(l.operation_id) AS after_leader_loss, count_if(f.after_end) AS after_end,
    sum(f.wait_ms) AS waited_ms, max(f.wait_ms) AS max_ms
FROM fetches f
LEFT JOIN lost l ON l.operation_id = f.operation_id
GROUP BY f.broker, f.group_id
ORDER BY f.broker, f.group_id
