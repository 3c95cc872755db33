-- How late each broker ended what expired on both sides, in milliseconds after the deadline, and the median of what
-- remains when the usual lateness of its timer is subtracted.
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
