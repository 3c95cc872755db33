-- The operations that a variant changes anything of.
--
-- Reads:  changes

SELECT * FROM changes WHERE change <> 'same'
