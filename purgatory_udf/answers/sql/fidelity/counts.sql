-- How many operations ended in which way on both sides.
--
-- Reads:  fidelity

SELECT kind, broker, recorded_outcome, replayed_outcome, agrees, cause, count(*) AS operations
FROM fidelity
GROUP BY kind, broker, recorded_outcome, replayed_outcome, agrees, cause
ORDER BY kind, broker, recorded_outcome, replayed_outcome
