-- The requests of simulated clients by type: their number, and the time until the response.
--
-- Reads:  truth_requests, events

SELECT e.type, count(*) AS requests,
    count_if(t.received_at IS NULL) AS unanswered,
    round(percentile_cont(0.5) WITHIN GROUP (ORDER BY (unix_micros(t.received_at) - unix_micros(t.sent_at)) / 1e3), 1)
        AS p50_ms,
    round(percentile_cont(0.99) WITHIN GROUP (ORDER BY (unix_micros(t.received_at) - unix_micros(t.sent_at)) / 1e3), 1)
        AS p99_ms,
    sum(t.throttle_ms) AS throttled_ms
FROM truth_requests t
JOIN events e ON e.seq = t.operation_id
GROUP BY e.type
ORDER BY e.type
