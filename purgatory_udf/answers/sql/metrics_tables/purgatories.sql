-- `PurgatorySize` and `NumDelayedOperations` of each purgatory by window, and its dead watches: entries of ended
-- operations, which a watcher list holds until a purge.
--
-- The gauges count live and dead watches together. The live ones follow from the operations: each has one watch per key
-- from the first step (reading of the gauges) after its start to the first step after its end.
--
--   step     1   2   3   4
--   watched  2   2   3   0    the gauge
--   live     2   1   1   0    from the operations
--   dead     0   1   2   0    the difference
--
-- Operations that were still open when the replay ended are in no table. If the gauge counts one, the number of dead
-- watches is unknown (null). So it is in RemoteFetch and ShareFetch while an operation waits, because the tables do not have
-- the number of its keys.
--
-- Reads:       purgatory_gauges, ended
-- Parameters:  :window_ms, length of a window in milliseconds; windows count from the epoch
--              :step_ms, interval of the gauges' readings in milliseconds
--              :bytes_per_watch, memory of a watch in bytes

WITH gauges AS (
    SELECT broker, purgatory, unix_millis(g.at) AS at_ms, watched AS purgatory_size, delayed AS num_delayed, purged
    FROM purgatory_gauges g
),
waited AS (
    SELECT broker, kind,
        -- Operations of groups have one key and no partitions.
        greatest(size(partitions), 1) AS keys,
        unix_millis(started_at) AS started_ms,
        unix_millis(ended_at) AS ended_ms,
        expired,
        -- A rebalance without a request was started by a timer, at a whole millisecond.
        CASE WHEN kind IN ('join', 'initial_join', 'sync')
            THEN request_id IS NULL AND pmod(unix_micros(started_at), 1000) = 0
            ELSE false
        END AS by_timer
    FROM ended
    WHERE watched
        AND kind IN (
            'produce', 'fetch', 'delete_records', 'create_topics', 'list_offsets', 'join', 'initial_join', 'sync',
            'heartbeat'
        )
        -- Without gauges there are no dead watches to compute.
        AND EXISTS (SELECT 1 FROM purgatory_gauges)
),
seen AS (
    -- A step includes the effects of timers in its own millisecond, and of events before that millisecond.
    SELECT broker, kind, keys,
        CASE WHEN by_timer THEN started_ms ELSE started_ms + 1 END AS first_ms,
        CASE WHEN expired AND ended_ms > started_ms THEN ended_ms ELSE ended_ms + 1 END AS last_ms
    FROM waited
),
-- Operations between two steps are in no reading: they are left out first, because most are.
stepped AS (
    SELECT broker, kind, keys, first_ms + pmod(-first_ms, :step_ms) AS first_ms, last_ms + pmod(-last_ms, :step_ms) AS last_ms
    FROM seen
    WHERE last_ms + pmod(-last_ms, :step_ms) > first_ms + pmod(-first_ms, :step_ms)
),
changes_by_kind AS (
    SELECT broker, at_ms, sum(sign * keys) AS watches, sum(sign) AS operations,
        CASE kind
            WHEN 'produce' THEN 'Produce' WHEN 'fetch' THEN 'Fetch' WHEN 'delete_records' THEN 'DeleteRecords'
            WHEN 'create_topics' THEN 'topic' WHEN 'list_offsets' THEN 'RemoteListOffsets'
            WHEN 'heartbeat' THEN 'Heartbeat' ELSE 'Rebalance'
        END AS purgatory
    FROM (
        SELECT broker, kind, keys, sign, CASE WHEN sign > 0 THEN first_ms ELSE last_ms END AS at_ms
        FROM stepped CROSS JOIN (VALUES (1), (-1)) AS signs(sign)
    ) moved
    GROUP BY broker, kind, at_ms
),
changes AS (
    SELECT broker, purgatory, at_ms, sum(watches) AS watches, sum(operations) AS operations
    FROM changes_by_kind c
    -- Kafka's new group coordinator has no purgatories.
    WHERE EXISTS (SELECT 1 FROM gauges g WHERE g.broker = c.broker AND g.purgatory = c.purgatory)
    GROUP BY broker, purgatory, at_ms
    HAVING sum(watches) <> 0 OR sum(operations) <> 0
),
steps AS (
    SELECT coalesce(g.broker, c.broker) AS broker, coalesce(g.purgatory, c.purgatory) AS purgatory,
        coalesce(g.at_ms, c.at_ms) AS at_ms,
        g.purgatory_size, g.num_delayed, coalesce(g.purged, 0) AS purged,
        coalesce(c.watches, 0) AS watches, coalesce(c.operations, 0) AS operations
    FROM gauges g
    FULL JOIN changes c ON c.broker = g.broker AND c.purgatory = g.purgatory AND c.at_ms = g.at_ms
),
running AS (
    SELECT broker, purgatory, at_ms, purgatory_size, num_delayed, purged,
        -- Counts the readings so far: steps with the same number have the same last reading.
        count(purgatory_size) OVER so_far AS reading,
        sum(watches) OVER so_far AS live,
        sum(operations) OVER so_far AS known
    FROM steps
    WINDOW so_far AS (PARTITION BY broker, purgatory ORDER BY at_ms ROWS UNBOUNDED PRECEDING)
),
levels AS (
    SELECT broker, purgatory, at_ms, purged, live, known,
        coalesce(max(purgatory_size) OVER same_reading, 0) AS purgatory_size,
        coalesce(max(num_delayed) OVER same_reading, 0) AS num_delayed,
        -- A level holds until the next step, the last one for one interval.
        coalesce(lead(at_ms) OVER (PARTITION BY broker, purgatory ORDER BY at_ms), at_ms + :step_ms) AS until_ms
    FROM running
    WINDOW same_reading AS (PARTITION BY broker, purgatory, reading)
),
windowed AS (
    SELECT broker, purgatory, at_ms, until_ms, purgatory_size, num_delayed, purged,
        CASE WHEN known = num_delayed THEN purgatory_size - live END AS dead_watches,
        explode(sequence(at_ms - pmod(at_ms, :window_ms), until_ms - 1, CAST(:window_ms AS BIGINT))) AS window_ms
    FROM levels
),
held AS (
    SELECT broker, purgatory, window_ms, at_ms, purgatory_size, num_delayed, dead_watches,
        CASE WHEN window_ms = at_ms - pmod(at_ms, :window_ms) THEN purged ELSE 0 END AS purged,
        least(until_ms, window_ms + :window_ms) - greatest(at_ms, window_ms) AS held_ms
    FROM windowed
)
SELECT broker, purgatory, timestamp_millis(h.window_ms) AS window_start, :window_ms AS window_ms,
    max_by(purgatory_size, at_ms) AS purgatory_size_last,
    max(purgatory_size) AS purgatory_size_max,
    sum(purgatory_size * held_ms) / sum(held_ms) AS purgatory_size_mean,
    max_by(num_delayed, at_ms) AS num_delayed_last,
    max(num_delayed) AS num_delayed_max,
    sum(num_delayed * held_ms) / sum(held_ms) AS num_delayed_mean,
    max_by(dead_watches, at_ms) AS dead_watches_last,
    max(dead_watches) AS dead_watches_max,
    sum(dead_watches * held_ms) / sum(held_ms) AS dead_watches_mean,
    max(dead_watches) * :bytes_per_watch AS dead_bytes_max,
    sum(purged) AS purged
FROM held h
GROUP BY broker, purgatory, h.window_ms
ORDER BY broker, purgatory, window_start
