-- The lateness of operations that expired on both sides, by broker and by the part of the millisecond of their start.
--
-- Reads:       operation_pairs
-- Parameters:  :parts, number of parts of a millisecond
-- Columns:     late_ms, the median; operations; fine, the number of log lines with a fraction of a millisecond

SELECT broker, CAST(floor(pmod(unix_micros(started_at), 1000) * :parts / 1e3) AS INT) AS part,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY late_ms) AS late_ms,
    count(*) AS operations,
    count_if(written_at IS NOT NULL AND pmod(unix_micros(written_at), 1000) <> 0) AS fine
FROM operation_pairs
WHERE recorded_outcome = 'expired' AND replayed_outcome = 'expired'
GROUP BY 1, 2
ORDER BY broker, part
