-- Share fetches of the groups and brokers with the most expirations.
--
-- Reads:       metrics_share_fetches
-- Parameters:  :top, maximum number of rows

SELECT s.group AS group, s.broker, operations, on_arrival, after_a_wait, expired, with_records, unwoken, after_leader_loss,
    waited_ms
FROM metrics_share_fetches s
ORDER BY expired DESC, s.group, s.broker
LIMIT :top
