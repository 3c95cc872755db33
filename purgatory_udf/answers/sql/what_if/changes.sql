-- Each operation of the baseline next to the same operation of a variant, and the kind of change. An operation that is
-- open or does not exist on one side has nulls there.
--
-- Reads:  baseline_operations, variant_operations

SELECT coalesce(b.kind, v.kind) AS kind,
    coalesce(b.operation_id, v.operation_id) AS operation_id,
    coalesce(b.broker, v.broker) AS broker,
    coalesce(b.request_id, v.request_id) AS request_id,
    coalesce(b.client_id, v.client_id) AS client_id,
    coalesce(b.key, v.key) AS key,
    coalesce(b.started_at, v.started_at) AS started_at,
    b.expired AS baseline_expired, v.expired AS variant_expired,
    b.completed_by AS baseline_completed_by, v.completed_by AS variant_completed_by,
    b.wait_ms AS baseline_wait_ms, v.wait_ms AS variant_wait_ms,
    b.watched AS baseline_watched, v.watched AS variant_watched,
    b.bytes AS baseline_bytes, v.bytes AS variant_bytes,
    v.wait_ms - b.wait_ms AS shift_ms,
    CASE
        WHEN b.expired IS NULL OR v.expired IS NULL THEN 'in one of both only'
        WHEN NOT b.expired AND v.expired THEN 'expiration appears'
        WHEN b.expired AND NOT v.expired THEN 'expiration vanishes'
        WHEN v.wait_ms > b.wait_ms THEN 'waits longer'
        WHEN v.wait_ms < b.wait_ms THEN 'waits less'
        WHEN v.completed_by = b.completed_by AND v.bytes IS NOT DISTINCT FROM b.bytes THEN 'same'
        ELSE 'ended by something else'
    END AS change
FROM baseline_operations b
FULL JOIN variant_operations v
    ON v.kind = b.kind AND v.who = b.who AND v.request = b.request AND v.nth = b.nth
