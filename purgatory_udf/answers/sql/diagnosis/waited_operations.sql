-- purgatory_udf/answers/sql/diagnosis/waited_operations.sql
-- The number of operations that were in a purgatory.
--
-- Reads:  wait_counts, cancelled

SELECT (SELECT CAST(coalesce(sum(operations), 0) AS BIGINT) FROM wait_counts WHERE watched)
    + (SELECT count(*) FROM cancelled WHERE watched) AS operations
