-- The operations that a variant changes.
--
-- Reads:  changes

SELECT * FROM changes WHERE change <> 'same'
