-- Functions of Spark SQL that DuckDB lacks, or has under another name or with another treatment of nulls.
-- DuckDB runs this file before any query, so that one text of a query runs on both engines.
-- In DuckDB's own shell: `.read duckdb_macros.sql`.

CREATE MACRO pmod(number, divisor) AS ((number % divisor) + divisor) % divisor;

-- `epoch_ms` rounds to the nearest millisecond, Spark takes the one that has begun.
CREATE MACRO unix_millis(moment) AS (epoch_us(moment) - pmod(epoch_us(moment), 1000)) // 1000;
CREATE MACRO unix_micros(moment) AS epoch_us(moment);
CREATE MACRO timestamp_millis(ms) AS make_timestamptz(ms * 1000);
CREATE MACRO timestamp_micros(us) AS make_timestamptz(us);

-- Without rows, or over nulls only, Spark counts 0 and collects an empty list; DuckDB's own return null.
CREATE MACRO count_if(condition) AS count(CASE WHEN condition THEN 1 END);
CREATE MACRO collect_list(item) AS coalesce(list(item) FILTER (WHERE item IS NOT NULL), []);

-- Lists. Spark's `explode` and DuckDB's `unnest` both drop rows whose list is empty or null.
CREATE MACRO explode(list) AS unnest(list);
CREATE MACRO size(list) AS len(list);
-- Spark reads it as `list.name`.
CREATE MACRO fields(list, name) AS list_transform(list, lambda element: struct_extract(element, name));
-- Spark reads it as `aggregate(...)`.
CREATE MACRO list_total(list) AS CAST(list_sum(list) AS BIGINT);
CREATE MACRO sequence(first, last, step) AS generate_series(first, last, step);
CREATE MACRO array_sort(list) AS list_sort(list);
CREATE MACRO array_max(list) AS list_max(list);
CREATE MACRO array_min(list) AS list_min(list);
CREATE MACRO array_except(list, others) AS
    CASE WHEN others IS NOT NULL
        THEN list_filter(list_distinct(list), lambda element: NOT list_contains(others, element)) END;

-- `max_by(value, struct(a, b))`: structs are ordered by their first field, then by their second. Neither may be null.
CREATE MACRO struct(a, b) AS row(a, b);
-- DuckDB's own skip rows whose value is null.
CREATE MACRO max_by(value, ordering) AS arg_max_null(value, ordering);
CREATE MACRO min_by(value, ordering) AS arg_min_null(value, ordering);
