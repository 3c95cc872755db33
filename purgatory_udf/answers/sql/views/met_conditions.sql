-- purgatory_udf/answers/sql/views/met_conditions.sql
-- The conditions that each waiting operation waited for, with the time from which it waited for each.
--
-- Reads:    conditions, fetch_data, waited
-- Columns:  as in `conditions`; from_us, when the condition before it was met, or the wait started; is_last, whether no
--           condition was met later; of the last one, end_us, the end of the wait, and rest, the cause of a fetch's wait
--           from there to its end

WITH data AS (
    SELECT DISTINCT operation_id, broker, client_id, start_us, end_us, first_us, replica_id, is_committed
    FROM fetch_data
    WHERE is_summed
    UNION ALL
    SELECT operation_id, broker, client_id, start_us, end_us, first_us, replica_id, is_committed
    FROM fetch_data
    WHERE NOT is_summed
),
found AS (
    SELECT operation_id, broker, client_id, start_us, end_us, greatest(start_us, least(end_us, first_us)) AS met_us,
        CASE
            WHEN replica_id >= 0 THEN 'replication_throttled'
            WHEN is_committed THEN 'open_transaction'
            ELSE 'high_watermark'
        END AS rest
    FROM data
),
several AS (
    SELECT DISTINCT operation_id FROM conditions
),
-- Only operations with several conditions need an order.
unordered AS (
    SELECT c.*, CAST(NULL AS STRING) AS rest FROM conditions c
    UNION ALL
    SELECT f.operation_id, 'no_data', f.met_us, 2, NULL, NULL, NULL, NULL, f.rest
    FROM found f
    JOIN several s ON s.operation_id = f.operation_id
)
SELECT f.operation_id, 'fetch' AS kind, f.broker, f.client_id, CAST(NULL AS STRING) AS key, 'no_data' AS cause,
    CAST(NULL AS INT) AS replica, CAST(NULL AS STRING) AS member_id, CAST(NULL AS STRING) AS topic,
    CAST(NULL AS INT) AS partition, f.start_us AS from_us, f.met_us, f.end_us, true AS is_last, f.rest
FROM found f
LEFT JOIN several s ON s.operation_id = f.operation_id
WHERE s.operation_id IS NULL
UNION ALL
SELECT c.operation_id, w.kind, w.broker, w.client_id, w.key, c.cause, c.replica, c.member_id, c.topic, c.partition,
    coalesce(lag(met_us) OVER in_order, w.start_us), c.met_us, w.end_us,
    lead(met_us) OVER in_order IS NULL,
    max(c.rest) OVER in_order
FROM unordered c
JOIN waited w ON w.operation_id = c.operation_id
WINDOW in_order AS (
    PARTITION BY c.operation_id
    ORDER BY met_us, later DESC, CASE WHEN topic || '-' || CAST(partition AS STRING) = w.trigger THEN 0 ELSE 1 END,
        topic, partition, replica, member_id
)
