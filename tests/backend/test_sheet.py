"""Queries that Arrow executes give the same results as in DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from purgatory_udf.backend.local import functions as sf
from purgatory_udf.backend.local import sheet
from purgatory_udf.backend.local.formula import NoFormulaError
from purgatory_udf.backend.local.session import LocalSession
from purgatory_udf.backend.local.sheet import Sheet

ROWS = pa.table(
    {
        "topic": pa.array(["b", "a", None, "a", "ä", "B", "", "a"], pa.string()),
        "partition": pa.array([2, 1, 2, None, 0, 2, -1, 1], pa.int32()),
        "us": pa.array([7, 2**62, None, -5, 7, 0, 7, 2], pa.int64()),
        "flag": pa.array([True, False, None, True, False, None, True, True], pa.bool_()),
        "ratio": pa.array([0.5, float("nan"), None, -0.0, 0.0, 1e300, 2.0, 2.5], pa.float64()),
        "numbers": pa.array([[1, 2], [3], None, [4], [5], [6], [7, None], [8]], pa.list_(pa.int64())),
        "text": pa.array(
            ['{"a": 1, "b": "x"}', '{"b": null}', "{}", '{"a": -3, "c": [1]}', '{"b": "ä\\n"}', "{}", "{}", '{"a":0}'],
            pa.string(),
        ),
    }
)
NAMES = pa.table({"topic": pa.array(["a", "b", "c"]), "name": pa.array(["A", None, "C"]), "count": pa.array([1, 2, 3])})
PLACES = pa.table({"topic": ["a", "b", "b"], "partition": pa.array([1, 2, 0], pa.int32()), "us": [10, 20, 30]})

Query = Callable[[Any, Any, Any], Any]


def _col(name: str) -> Any:
    return sf.col(name)


IN_ARROW: dict[str, Query] = {
    "all rows": lambda rows, _, __: rows,
    "equal texts": lambda rows, _, __: rows.where(_col("topic") == "a"),
    "unequal numbers": lambda rows, _, __: rows.where(_col("partition") != 2),
    "large numbers": lambda rows, _, __: rows.where(_col("us") < 2**40),
    "boolean column": lambda rows, _, __: rows.where("flag"),
    "negated boolean column": lambda rows, _, __: rows.where(~_col("flag")),
    "disjunction with nulls": lambda rows, _, __: rows.where((_col("us") >= 7) | _col("flag")),
    "in list": lambda rows, _, __: rows.where(_col("topic").isin("a", "ä")),
    "not in list": lambda rows, _, __: rows.where(~_col("topic").isin("a", "ä")),
    "null": lambda rows, _, __: rows.where("topic IS NULL"),
    "not null": lambda rows, _, __: rows.where("topic IS NOT NULL AND us IS NOT NULL"),
    "conditions on a selection": lambda rows, _, __: (
        rows.where("flag").select(_col("us").alias("at"), "topic").where(_col("at") > 0).where(_col("topic") == "b")
    ),
    "arithmetic": lambda rows, _, __: rows.where(_col("us") < 100).select(
        (_col("us") + _col("partition") - 1).alias("us"), (_col("partition") + 1).alias("next")
    ),
    "literals": lambda rows, _, __: rows.select("us", sf.lit("x").alias("x"), sf.lit(1).alias("one"), sf.lit(None)),
    "cases": lambda rows, _, __: rows.select(
        sf.when(_col("us") > 0, _col("topic")), sf.when(_col("flag"), 1).otherwise(0).alias("flag")
    ),
    "greatest": lambda rows, _, __: rows.select(sf.greatest("us", "partition", sf.lit(1))),
    "timestamp": lambda rows, _, __: rows.where(_col("us") < 100).select(sf.timestamp_micros("us").alias("at")),
    "element by expression": lambda rows, _, __: rows.select(
        sf.element_at(sf.array(sf.lit("n"), sf.lit("m")), _col("partition") + 1).alias("chosen")
    ),
    "element by index": lambda rows, _, __: rows.select(_col("numbers")[0].alias("number")),
    "concatenation": lambda rows, _, __: rows.select(sf.concat("topic", sf.lit(":"), "us").alias("chosen")),
    "JSON fields": lambda rows, _, __: rows.withColumn("parsed", sf.from_json("text", "a BIGINT, b STRING")).select(
        "parsed.a", _col("parsed.b").alias("c")
    ),
    "in order": lambda rows, _, __: rows.orderBy("topic", "us", "partition", "flag"),
    "limit in order": lambda rows, _, __: rows.orderBy("us", "topic").limit(2),
    "renamed column": lambda rows, _, __: rows.withColumnRenamed("us", "at").drop("ratio"),
    "union": lambda rows, names, _: rows.select("topic", "us").union(names.select("name", "count")),
    "union with missing columns": lambda rows, names, _: rows.where("flag").unionByName(
        names, allowMissingColumns=True
    ),
    "join": lambda rows, names, _: rows.join(names, "topic"),
    "left join": lambda rows, names, _: rows.join(names, ["topic"], "left"),
    "left join by two columns": lambda rows, _, places: (
        rows.drop("us").join(places, ["topic", "partition"], "left").where("us IS NULL")
    ),
    "join with aggregate": lambda rows, _, places: rows.select("topic", "partition").join(
        places.groupBy("topic").agg(sf.sum("us").alias("sum")), "topic"
    ),
    "aggregates by group": lambda rows, _, __: (
        rows.where(_col("us") < 100)
        .groupBy("topic")
        .agg(sf.sum("us").alias("sum"), sf.min("us"), sf.max("partition"), sf.count("flag"), sf.count("*"))
    ),
    "aggregates": lambda rows, _, __: rows.agg(sf.min("us"), sf.max("us"), sf.count("*")),
    "aggregates of no rows": lambda rows, _, __: rows.where(_col("us") == 3).agg(
        sf.max("us"), sf.sum("us"), sf.count("us")
    ),
    "groups by two columns": lambda rows, _, __: rows.groupBy("topic", (_col("us") > 0).alias("late")).agg(
        sf.count("*")
    ),
    "collected lists": lambda rows, _, __: rows.groupBy("topic").agg(
        sf.collect_list(sf.struct("partition", _col("us").alias("at"))).alias("places")
    ),
    "distinct rows": lambda rows, _, __: rows.select("topic", "partition").distinct(),
}

IN_DUCKDB: dict[str, Query] = {
    "comparison with NaN": lambda rows, _, __: rows.where(_col("ratio") > 1),
    "order of NaN": lambda rows, _, __: rows.orderBy("ratio", "us"),
    "join with duplicate keys": lambda rows, _, places: rows.select("topic").join(places.drop("partition"), "topic"),
    "comparison of number and text": lambda rows, _, __: rows.where(_col("us") == "7"),
    "overflow of a sum": lambda rows, _, __: rows.groupBy("topic").agg(sf.sum("us").alias("sum")),
    "unsupported function": lambda rows, _, __: rows.select(sf.coalesce("topic", sf.lit("-")).alias("topic")),
    "unsupported condition": lambda rows, _, __: rows.where("us > 3"),
    "JSON of another type": lambda rows, _, __: (
        rows.withColumn("parsed", sf.from_json("text", "b BIGINT")).where(_col("topic") == "b").select("parsed.b")
    ),
    "descending order": lambda rows, _, __: rows.orderBy(sf.desc("us"), "topic"),
}


def _frame(query: Query) -> Any:
    session = LocalSession()
    return query(*map(session.frame_of, (ROWS, NAMES, PLACES)))


def _rows(table: pa.Table) -> list[str]:
    return list(map(repr, table.to_pylist()))


@pytest.mark.parametrize("name", IN_ARROW)
def test_arrow_results_equal_duckdb(name: str) -> None:
    frame = _frame(IN_ARROW[name])
    expected = frame._asking.run(frame._sql())
    actual = frame._sheet.table()
    assert sorted(_rows(actual)) == sorted(_rows(expected))
    assert "in order" not in name or _rows(actual) == _rows(expected)
    assert actual.column_names == expected.column_names
    assert list(map(str, _kinds(actual))) == list(map(str, _kinds(expected)))
    assert frame._sheet.count() == len(expected)


@pytest.mark.parametrize("ranges", [0, 1, 8])
def test_filter_by_ranges_equals_filter_by_rows(ranges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet, "FEW_STRETCHES", ranges)
    cut = pa.concat_tables([ROWS.slice(0, 3), ROWS.slice(3)])
    for name, keeps in (("flag", [0, 3, 6, 7]), ("none", []), ("all", [*range(8)])):
        holds = ROWS.column("flag") if name == "flag" else pa.array([number in keeps for number in range(8)])
        frame = LocalSession().frame_of(cut.append_column("holds", holds)).where("holds").select(*ROWS.column_names)
        kept = frame.toArrow()
        assert _rows(kept) == _rows(ROWS.take(pa.array(keeps, pa.int64()))) and kept.schema == ROWS.schema


def _kinds(table: pa.Table) -> list[pa.DataType]:
    """Return the column types, lists without the names of their elements."""
    return [kind.value_type if pa.types.is_list(kind) else kind for kind in table.schema.types]


@pytest.mark.parametrize("name", IN_DUCKDB)
def test_unsupported_queries_run_in_duckdb(name: str) -> None:
    frame = _frame(IN_DUCKDB[name])
    assert frame._sheet is None or _refuses(frame._sheet)
    assert sorted(_rows(frame.toArrow())) == sorted(_rows(frame._asking.run(frame._sql())))


def _refuses(sheet: Sheet) -> bool:
    with pytest.raises((NoFormulaError, pa.ArrowException)):
        sheet.table()
    return True


def test_arrow_query_opens_no_duckdb() -> None:
    frame = _frame(IN_ARROW["join"])
    assert len(frame.collect()) == frame.count() == 4
    assert "_connection" not in vars(frame._asking)
