-- The lateness of operations that expired on both sides, in milliseconds after the deadline, by broker, and the median
-- of the remaining difference after the usual lateness of the broker's timer is subtracted.
--
-- Reads:  fidelity

SELECT broker, count(*) AS operations,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY recorded_ms - replayed_ms) AS median,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY recorded_ms - replayed_ms) AS p95,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY abs(difference_ms)) AS remaining
FROM fidelity
WHERE recorded_outcome = 'expired' AND replayed_outcome = 'expired'
GROUP BY broker
ORDER BY broker
