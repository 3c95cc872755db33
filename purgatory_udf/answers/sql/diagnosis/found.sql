-- purgatory_udf/answers/sql/diagnosis/found.sql
-- The findings of a diagnosis, the heaviest first.
--
-- Reads:  found

SELECT * FROM found ORDER BY rank
