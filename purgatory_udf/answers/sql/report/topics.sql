-- The number of requests that failed in each time bin, for the topics with the most failures. A request counts once for
-- each of its topics.
--
-- Reads:       ended
-- Parameters:  :bin_ms, width of a bin in milliseconds
--              :most, maximum number of topics
-- Columns:     t, start of the bin in milliseconds since the epoch; topic (and kind), failed; all_failed, the topic's
--              total

WITH exploded AS (
    SELECT operation_id, kind, unix_millis(ended_at) AS failed_ms, explode(partitions) AS part FROM ended WHERE failed
),
named AS (
    SELECT DISTINCT operation_id, failed_ms, part.topic || ' ' || kind AS name FROM exploded
),
binned AS (
    SELECT failed_ms - pmod(failed_ms, :bin_ms) AS t, name, count(*) AS failed FROM named GROUP BY t, name
),
worst AS (
    SELECT name, sum(failed) AS all_failed FROM binned GROUP BY name ORDER BY all_failed DESC, name LIMIT :most
)
SELECT b.t, b.name AS topic, b.failed, w.all_failed
FROM binned b
JOIN worst w ON w.name = b.name
ORDER BY w.all_failed DESC, b.name, b.t
