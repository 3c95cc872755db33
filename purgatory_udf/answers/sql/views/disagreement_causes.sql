-- The cause of each disagreement between the replay and the broker: the first that applies.
-- `outcome_comparison.CAUSES` describes the causes.
--
-- Reads:  disagreements

WITH waits AS (
    SELECT operation_id, kind, recorded_outcome, replayed_outcome, delay_ms, error, complete, decided_by, in_handling,
        'completed' IN (recorded_outcome, replayed_outcome) AS one_completed,
        'expired' IN (recorded_outcome, replayed_outcome) AS one_expired,
        -- The wait on the side that saw the deciding change.
        CASE WHEN recorded_outcome = 'completed' THEN recorded_ms ELSE replayed_ms END AS waited_ms
    FROM disagreements
)
SELECT operation_id,
    CASE
        WHEN replayed_outcome = 'none' THEN 'not_replayed'
        WHEN NOT complete THEN 'session_before_the_log'
        WHEN error <> 'NONE' THEN 'partition_error'
        WHEN left(decided_by, 2) = '__' THEN 'coordinator_append'
        -- A log line is written some 0.1 ms after the response, under load a few milliseconds. So 5 ms are near.
        WHEN one_completed AND one_expired AND abs(delay_ms - waited_ms) <= 5 THEN 'near_the_deadline'
        WHEN one_expired THEN 'change_unseen'
        WHEN kind = 'produce acks=-1' AND recorded_outcome = 'at_once' THEN 'stamped_late'
        WHEN in_handling THEN 'inside_handling'
        WHEN coalesce(waited_ms, 0) <= 5 THEN 'dated_apart'
        ELSE 'change_unseen'
    END AS cause
FROM waits
