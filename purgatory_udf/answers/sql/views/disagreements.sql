-- The rows of `operation_pairs` with different outcomes, and their circumstances.
--
-- Reads:    operation_pairs, recorded, ended
-- Columns:  delay_ms, the operation's timeout; error and complete, of the recorded response; decided_by, the
--           topic-partition of the change that ended the operation in the replay, or the topic of the returned bytes;
--           in_handling, whether the broker was handling a produce or a follower's fetch at the operation's start

WITH differing AS (
    SELECT * FROM operation_pairs WHERE NOT agrees
),
ends AS (
    SELECT d.operation_id, (unix_micros(e.deadline) - unix_micros(e.started_at)) / 1e3 AS delay_ms, e.trigger, e.key,
        e.partitions
    FROM differing d
    JOIN ended e ON e.operation_id = d.operation_id
),
returned AS (
    -- The first partition with bytes in the response.
    SELECT operation_id, min_by(topic, place) AS topic
    FROM (
        SELECT operation_id, part.topic AS topic, part.bytes AS bytes, array_position(partitions, part) AS place
        FROM (SELECT operation_id, partitions, explode(partitions) AS part FROM ends) exploded
    ) placed
    WHERE bytes > 0
    GROUP BY operation_id
),
handled AS (
    SELECT DISTINCT d.operation_id
    FROM differing d
    JOIN recorded r ON r.broker = d.broker
        AND r.operation_id <> d.operation_id
        AND r.kind IN ('follower fetch', 'produce acks=-1', 'produce acks=1', 'produce acks=0')
        -- Times of the log have a precision of some tenths of a millisecond.
        AND unix_micros(d.started_at) >= unix_micros(r.started_at) - r.recorded_local_ms * 1000 - 500
        AND unix_micros(d.started_at) <= unix_micros(r.started_at) + 500
)
SELECT d.operation_id, d.kind, d.recorded_outcome, d.replayed_outcome, d.recorded_ms, d.replayed_ms,
    e.delay_ms, r.recorded_error AS error, r.recorded_complete AS complete,
    coalesce(e.trigger, p.topic, e.key) AS decided_by,
    h.operation_id IS NOT NULL AS in_handling
FROM differing d
JOIN recorded r ON r.operation_id = d.operation_id
LEFT JOIN ends e ON e.operation_id = d.operation_id
LEFT JOIN returned p ON p.operation_id = d.operation_id
LEFT JOIN handled h ON h.operation_id = d.operation_id
