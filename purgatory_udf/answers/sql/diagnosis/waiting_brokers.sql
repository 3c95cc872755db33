-- purgatory_udf/answers/sql/diagnosis/waiting_brokers.sql
-- The brokers at which operations waited.
--
-- Reads:  waited

SELECT DISTINCT broker FROM waited WHERE start_us < end_us AND broker IS NOT NULL
