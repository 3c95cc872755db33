-- purgatory_udf/answers/sql/views/wait_causes.sql
-- The causes of waits for records of partitions. Rows that are sorted have the number of a cause.
--
-- Reads:
-- Columns:  number, cause

SELECT number, cause
FROM (VALUES
    (1, 'no_data'),
    (2, 'below_min_bytes'),
    (3, 'follower_behind'),
    (4, 'below_min_isr'),
    (5, 'high_watermark'),
    (6, 'open_transaction'),
    (7, 'replication_throttled')
) AS causes (number, cause)
