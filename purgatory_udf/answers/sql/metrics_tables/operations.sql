-- The number of operations that ended in each window, by kind and broker: on arrival, after a wait, by expiration.
--
-- Reads:       ended
-- Parameters:  :window_ms, length of a window in milliseconds; windows count from the epoch

SELECT kind, broker,
    timestamp_millis(unix_millis(ended_at) - pmod(unix_millis(ended_at), :window_ms)) AS window_start,
    :window_ms AS window_ms,
    count(*) AS operations,
    count_if(NOT expired AND NOT watched) AS on_arrival,
    count_if(NOT expired AND watched) AS after_a_wait,
    count_if(expired) AS expired,
    count_if(failed) AS failed,
    count_if(after_end) AS after_end,
    sum(wait_ms) AS waited_ms
FROM ended
GROUP BY kind, broker, window_start
ORDER BY window_start, kind, broker
