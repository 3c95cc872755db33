-- Rows of the table `fidelity`: requests to the new group coordinator (Kafka 4.0). The replay has compared its responses
-- with the recorded ones: errors, generations, member epochs and assignments.
--
-- Waits are not compared: requests wait in the coordinator's queue, and for the commit of records.
--
-- Reads:  events, recorded, group_disagreements

WITH disagreements AS (
    -- The first disagreement of each request.
    SELECT *
    FROM (
        SELECT d.seq, d.disagreement, d.recorded, d.replayed, row_number() OVER (
            PARTITION BY d.seq
            ORDER BY CASE d.disagreement
                WHEN 'error' THEN 1 WHEN 'generation' THEN 2 WHEN 'member_epoch' THEN 3 WHEN 'assignment' THEN 4 ELSE 5
            END, d.disagreement
        ) AS place
        FROM group_disagreements d
    ) numbered
    WHERE place = 1
),
responses AS (
    SELECT r.operation_id, r.broker, r.kind, r.request_id, r.started_at, r.recorded_remote_ms,
        d.disagreement, d.recorded, d.replayed,
        CASE
            WHEN r.recorded_error <> 'NONE' THEN r.recorded_error
            WHEN e.type = 'join_group' THEN 'generation ' || coalesce(CAST(r.recorded_generation AS STRING), 'None')
            WHEN e.type = 'consumer_group_heartbeat'
                THEN 'member_epoch ' || coalesce(CAST(e.assigned_epoch AS STRING), 'None')
            ELSE 'NONE'
        END AS response
    FROM events e
    JOIN recorded r ON r.operation_id = e.seq
    LEFT JOIN disagreements d ON d.seq = e.seq
    WHERE e.coordinator = 'new' AND e.type IN (
        'join_group', 'sync_group', 'heartbeat', 'leave_group', 'offset_commit', 'consumer_group_heartbeat'
    )
)
SELECT operation_id, broker, kind, request_id, started_at,
    CASE WHEN disagreement IN ('leader', 'member_id', 'assignment') THEN disagreement || ' ' || recorded
        ELSE response END AS recorded_outcome,
    CASE
        WHEN disagreement IS NULL THEN response
        WHEN disagreement IN ('leader', 'member_id', 'assignment', 'generation', 'member_epoch')
            THEN disagreement || ' ' || coalesce(replayed, 'None')
        ELSE replayed
    END AS replayed_outcome,
    recorded_remote_ms AS recorded_ms, CAST(NULL AS DOUBLE) AS replayed_ms, CAST(NULL AS DOUBLE) AS difference_ms,
    disagreement IS NULL AS agrees, CASE WHEN disagreement IS NOT NULL THEN 'group_state' END AS cause
FROM responses
