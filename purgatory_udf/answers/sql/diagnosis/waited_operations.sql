-- purgatory_udf/answers/sql/diagnosis/waited_operations.sql
-- The number of operations that were in a purgatory.
--
-- Reads:  waited

SELECT count(*) AS operations FROM waited
