-- The times at which brokers stood still, and the operations that waited there meanwhile.
--
-- Reads:    pauses, fidelity
-- Columns:  broker, paused_us, resumed_us; the number of operations, and of those with the same outcome

SELECT p.broker, p.paused_us, p.resumed_us, count(f.operation_id) AS operations,
    count(CASE WHEN f.agrees THEN 1 END) AS same
FROM pauses p
LEFT JOIN fidelity f
    ON f.broker = p.broker AND unix_micros(f.started_at) < p.resumed_us
        -- What was answered last before the pause ended within a millisecond of it.
        AND unix_micros(f.started_at) + f.recorded_ms * 1000 > p.paused_us + 1000
        AND unix_micros(f.started_at) <= p.paused_us + 1000
GROUP BY p.broker, p.paused_us, p.resumed_us
ORDER BY p.paused_us, p.broker
