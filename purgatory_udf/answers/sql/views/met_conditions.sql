-- purgatory_udf/answers/sql/views/met_conditions.sql
-- The conditions that each waiting operation waited for, with the time from which it waited for each.
--
-- Reads:    conditions, waited
-- Columns:  as in `conditions`; from_us, when the condition before it was met, or the wait started

SELECT c.operation_id, w.kind, w.broker, w.client_id, w.key, c.cause, c.replica, c.member_id, c.topic, c.partition,
    coalesce(
        lag(met_us) OVER (
            PARTITION BY c.operation_id
            ORDER BY met_us, later DESC,
                CASE WHEN topic || '-' || CAST(partition AS STRING) = w.trigger THEN 0 ELSE 1 END,
                topic, partition, replica, member_id
        ),
        w.start_us
    ) AS from_us,
    c.met_us
FROM conditions c
JOIN waited w ON w.operation_id = c.operation_id
