-- The number of operations by recorded and replayed outcome.
--
-- Reads:  fidelity

SELECT kind, broker, recorded_outcome, replayed_outcome, agrees, cause, count(*) AS operations
FROM fidelity
GROUP BY kind, broker, recorded_outcome, replayed_outcome, agrees, cause
ORDER BY kind, broker, recorded_outcome, replayed_outcome
