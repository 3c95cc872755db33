-- Kafka's expiration meters (`ExpiresPerSec`) by MBean, broker and window, with the number of marks. Windows without a
-- mark have no row.
--
--   DelayedProduceMetrics, DelayedDeleteRecordsMetrics, DelayedRemoteListOffsetsMetrics
--                                            one mark for each partition that is pending at the expiration
--   the same with `topic` and `partition`    the same, by partition
--   DelayedFetchMetrics with `fetcherType`   one mark for each fetch, of consumers and of followers
--   DelayedRemoteFetchMetrics                one mark for each fetch that waits for remote storage
--   DelayedShareFetchMetrics                 one mark for each share fetch, even if it was answered with records; a
--                                            second one if it then waited for remote storage, also in vain
--
-- Kafka has no such meter for its other purgatories: metrics/operations and metrics/waits count their expirations.
--
-- Reads:       expirations
-- Parameters:  :window_ms, length of a window in milliseconds; windows count from the epoch

WITH expired AS (
    SELECT broker, kind, partitions, fetcher, after_end,
        timestamp_millis(unix_millis(expired_at) - pmod(unix_millis(expired_at), :window_ms)) AS window_start
    FROM expirations
),
exploded AS (
    SELECT broker, kind, window_start, after_end, explode(partitions) AS part
    FROM expired
    WHERE kind IN ('produce', 'delete_records', 'list_offsets')
),
by_partition AS (
    SELECT
        CASE kind
            WHEN 'produce' THEN 'DelayedProduceMetrics' WHEN 'delete_records' THEN 'DelayedDeleteRecordsMetrics'
            ELSE 'DelayedRemoteListOffsetsMetrics'
        END AS type,
        broker, window_start, part.topic AS topic, part.partition AS partition,
        count(*) AS expired, count_if(after_end) AS after_end
    FROM exploded
    WHERE part.error = 'REQUEST_TIMED_OUT'
    GROUP BY kind, broker, window_start, part.topic, part.partition
),
meters AS (
    SELECT type || ',name=ExpiresPerSec,topic=' || topic || ',partition=' || CAST(partition AS STRING) AS bean,
        broker, topic, partition, CAST(NULL AS STRING) AS fetcher, window_start, expired, after_end
    FROM by_partition
    UNION ALL
    SELECT type || ',name=ExpiresPerSec', broker, NULL, NULL, NULL, window_start, sum(expired), sum(after_end)
    FROM by_partition
    GROUP BY type, broker, window_start
    UNION ALL
    SELECT 'DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=' || fetcher, broker, NULL, NULL, fetcher, window_start,
        count(*), count_if(after_end)
    FROM expired
    WHERE kind = 'fetch'
    GROUP BY broker, window_start, fetcher
    UNION ALL
    SELECT 'DelayedRemoteFetchMetrics,name=ExpiresPerSec', broker, NULL, NULL, NULL, window_start, count(*),
        count_if(after_end)
    FROM expired
    WHERE kind = 'remote_fetch'
    GROUP BY broker, window_start
    UNION ALL
    SELECT 'DelayedShareFetchMetrics,name=ExpiresPerSec', broker, NULL, NULL, NULL, window_start,
        count(*) + count_if(fetcher = 'remote_twice'),
        count_if(after_end) + count_if(after_end AND fetcher = 'remote_twice')
    FROM expired
    WHERE kind = 'share_fetch'
    GROUP BY broker, window_start
)
SELECT 'kafka.server:type=' || bean AS mbean, broker, topic, partition, fetcher, window_start,
    :window_ms AS window_ms, expired, expired * 1e3 / :window_ms AS per_second, after_end
FROM meters
ORDER BY mbean, broker, window_start
