-- The number of operations that expired in each time bin, by kind.
--
-- Reads:       expirations
-- Parameters:  :bin_ms, width of a bin in milliseconds
-- Columns:     t, start of the bin in milliseconds since the epoch; kind, expired

SELECT unix_millis(expired_at) - pmod(unix_millis(expired_at), :bin_ms) AS t, kind, count(*) AS expired
FROM expirations
GROUP BY t, kind
ORDER BY kind, t
