-- The number of operations that a variant changes, by kind. Quantiles are of operations that had to wait.
--
-- Reads:  changes

SELECT kind, count(*) AS operations,
    count_if(change <> 'same') AS differ,
    count_if(change = 'expiration appears') AS appear,
    count_if(change = 'expiration vanishes') AS vanish,
    count_if(change = 'ended by something else') AS other_end,
    count_if(change = 'in one of both only') AS one_only,
    count_if(baseline_expired) AS baseline_expired,
    count_if(variant_expired) AS variant_expired,
    round(percentile_cont(0.5) WITHIN GROUP (ORDER BY baseline_wait_ms) FILTER (WHERE baseline_watched), 2)
        AS baseline_p50,
    round(percentile_cont(0.5) WITHIN GROUP (ORDER BY variant_wait_ms) FILTER (WHERE variant_watched), 2)
        AS variant_p50,
    round(percentile_cont(0.99) WITHIN GROUP (ORDER BY baseline_wait_ms) FILTER (WHERE baseline_watched), 2)
        AS baseline_p99,
    round(percentile_cont(0.99) WITHIN GROUP (ORDER BY variant_wait_ms) FILTER (WHERE variant_watched), 2)
        AS variant_p99,
    sum(shift_ms) AS shift_ms
FROM changes
GROUP BY kind
ORDER BY kind
