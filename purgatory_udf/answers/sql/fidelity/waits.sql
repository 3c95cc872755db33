-- Quantiles of the differences of waits, in milliseconds, by kind and broker; `broker` is null for all brokers
-- together.
--
-- Reads:  fidelity

WITH differences AS (
    SELECT kind, broker, abs(difference_ms) AS ms FROM fidelity WHERE difference_ms IS NOT NULL
)
SELECT kind, broker, count(*) AS operations,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY ms) AS median,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY ms) AS p95,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY ms) AS p99,
    max(ms) AS worst
FROM differences
GROUP BY GROUPING SETS ((kind), (kind, broker))
ORDER BY kind, broker NULLS FIRST
