-- The number of requests that expired in each time bin, for the topics with the most expirations. A request counts once
-- for each of its topics.
--
-- Reads:       expirations
-- Parameters:  :bin_ms, width of a bin in milliseconds
--              :most, maximum number of topics
-- Columns:     t, start of the bin in milliseconds since the epoch; topic (and kind), expired; all_expired, the topic's
--              total

WITH exploded AS (
    SELECT operation_id, kind, unix_millis(expired_at) AS expired_ms, explode(partitions) AS part FROM expirations
),
named AS (
    SELECT DISTINCT operation_id, expired_ms, part.topic || ' ' || kind AS name FROM exploded
),
binned AS (
    SELECT expired_ms - pmod(expired_ms, :bin_ms) AS t, name, count(*) AS expired FROM named GROUP BY t, name
),
worst AS (
    SELECT name, sum(expired) AS all_expired FROM binned GROUP BY name ORDER BY all_expired DESC, name LIMIT :most
)
SELECT b.t, b.name AS topic, b.expired, w.all_expired
FROM binned b
JOIN worst w ON w.name = b.name
ORDER BY w.all_expired DESC, b.name, b.t
