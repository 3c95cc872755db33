"""What Arrow chooses, looks up, orders and counts itself is what DuckDB says of the same query."""

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
        "held": pa.array([True, False, None, True, False, None, True, True], pa.bool_()),
        "share": pa.array([0.5, float("nan"), None, -0.0, 0.0, 1e300, 2.0, 2.5], pa.float64()),
        "numbers": pa.array([[1, 2], [3], None, [4], [5], [6], [7, None], [8]], pa.list_(pa.int64())),
        "text": pa.array(
            ['{"a": 1, "b": "x"}', '{"b": null}', "{}", '{"a": -3, "c": [1]}', '{"b": "ä\\n"}', "{}", "{}", '{"a":0}'],
            pa.string(),
        ),
    }
)
NAMES = pa.table({"topic": pa.array(["a", "b", "c"]), "name": pa.array(["A", None, "C"]), "count": pa.array([1, 2, 3])})
PLACES = pa.table({"topic": ["a", "b", "b"], "partition": pa.array([1, 2, 0], pa.int32()), "us": [10, 20, 30]})

Question = Callable[[Any, Any, Any], Any]


def _col(name: str) -> Any:
    return sf.col(name)


IN_ARROW: dict[str, Question] = {
    "all": lambda rows, _, __: rows,
    "equal texts": lambda rows, _, __: rows.where(_col("topic") == "a"),
    "not this number": lambda rows, _, __: rows.where(_col("partition") != 2),
    "a large number": lambda rows, _, __: rows.where(_col("us") < 2**40),
    "a truth": lambda rows, _, __: rows.where("held"),
    "and its opposite": lambda rows, _, __: rows.where(~_col("held")),
    "nulls among others": lambda rows, _, __: rows.where((_col("us") >= 7) | _col("held")),
    "of several texts": lambda rows, _, __: rows.where(_col("topic").isin("a", "ä")),
    "of none of several": lambda rows, _, __: rows.where(~_col("topic").isin("a", "ä")),
    "null": lambda rows, _, __: rows.where("topic IS NULL"),
    "neither null": lambda rows, _, __: rows.where("topic IS NOT NULL AND us IS NOT NULL"),
    "one condition behind the other": lambda rows, _, __: (
        rows.where("held").select(_col("us").alias("at"), "topic").where(_col("at") > 0).where(_col("topic") == "b")
    ),
    "sums of columns": lambda rows, _, __: rows.where(_col("us") < 100).select(
        (_col("us") + _col("partition") - 1).alias("us"), (_col("partition") + 1).alias("next")
    ),
    "values": lambda rows, _, __: rows.select("us", sf.lit("x").alias("x"), sf.lit(1).alias("one"), sf.lit(None)),
    "cases": lambda rows, _, __: rows.select(
        sf.when(_col("us") > 0, _col("topic")), sf.when(_col("held"), 1).otherwise(0).alias("held")
    ),
    "the greater one": lambda rows, _, __: rows.select(sf.greatest("us", "partition", sf.lit(1))),
    "a moment": lambda rows, _, __: rows.where(_col("us") < 100).select(sf.timestamp_micros("us").alias("at")),
    "one of a list": lambda rows, _, __: rows.select(
        sf.element_at(sf.array(sf.lit("n"), sf.lit("m")), _col("partition") + 1).alias("said")
    ),
    "an element": lambda rows, _, __: rows.select(_col("numbers")[0].alias("number")),
    "texts and numbers in one": lambda rows, _, __: rows.select(sf.concat("topic", sf.lit(":"), "us").alias("said")),
    "fields of texts": lambda rows, _, __: rows.withColumn("told", sf.from_json("text", "a BIGINT, b STRING")).select(
        "told.a", _col("told.b").alias("c")
    ),
    "in order": lambda rows, _, __: rows.orderBy("topic", "us", "partition", "held"),
    "the first in order": lambda rows, _, __: rows.orderBy("us", "topic").limit(2),
    "another name": lambda rows, _, __: rows.withColumnRenamed("us", "at").drop("share"),
    "one below the other": lambda rows, names, _: rows.select("topic", "us").union(names.select("name", "count")),
    "with columns that others lack": lambda rows, names, _: rows.where("held").unionByName(
        names, allowMissingColumns=True
    ),
    "looked up": lambda rows, names, _: rows.join(names, "topic"),
    "looked up or not": lambda rows, names, _: rows.join(names, ["topic"], "left"),
    "looked up by two": lambda rows, _, places: (
        rows.drop("us").join(places, ["topic", "partition"], "left").where("us IS NULL")
    ),
    "looked up in totals": lambda rows, _, places: rows.select("topic", "partition").join(
        places.groupBy("topic").agg(sf.sum("us").alias("sum")), "topic"
    ),
    "totals": lambda rows, _, __: (
        rows.where(_col("us") < 100)
        .groupBy("topic")
        .agg(sf.sum("us").alias("sum"), sf.min("us"), sf.max("partition"), sf.count("held"), sf.count("*"))
    ),
    "of all": lambda rows, _, __: rows.agg(sf.min("us"), sf.max("us"), sf.count("*")),
    "of none": lambda rows, _, __: rows.where(_col("us") == 3).agg(sf.max("us"), sf.sum("us"), sf.count("us")),
    "by two": lambda rows, _, __: rows.groupBy("topic", (_col("us") > 0).alias("late")).agg(sf.count("*")),
    "lists": lambda rows, _, __: rows.groupBy("topic").agg(
        sf.collect_list(sf.struct("partition", _col("us").alias("at"))).alias("places")
    ),
    "all different": lambda rows, _, __: rows.select("topic", "partition").distinct(),
}

IN_DUCKDB: dict[str, Question] = {
    "no numbers": lambda rows, _, __: rows.where(_col("share") > 1),
    "the order of no numbers": lambda rows, _, __: rows.orderBy("share", "us"),
    "several of the same": lambda rows, _, places: rows.select("topic").join(places.drop("partition"), "topic"),
    "a text and a number": lambda rows, _, __: rows.where(_col("us") == "7"),
    "a sum that is too long": lambda rows, _, __: rows.groupBy("topic").agg(sf.sum("us").alias("sum")),
    "another function": lambda rows, _, __: rows.select(sf.coalesce("topic", sf.lit("-")).alias("topic")),
    "other words": lambda rows, _, __: rows.where("us > 3"),
    "texts that are no objects": lambda rows, _, __: (
        rows.withColumn("told", sf.from_json("text", "b BIGINT")).where(_col("topic") == "b").select("told.b")
    ),
    "backwards": lambda rows, _, __: rows.orderBy(sf.desc("us"), "topic"),
}


def _asked(question: Question) -> Any:
    here = LocalSession()
    return question(*map(here.frame_of, (ROWS, NAMES, PLACES)))


def _rows(table: pa.Table) -> list[str]:
    return list(map(repr, table.to_pylist()))


@pytest.mark.parametrize("name", IN_ARROW)
def test_arrow_says_what_duckdb_says(name: str) -> None:
    frame = _asked(IN_ARROW[name])
    said = frame._asking.run(frame._sql())
    here = frame._sheet.table()
    assert sorted(_rows(here)) == sorted(_rows(said))
    assert "in order" not in name or _rows(here) == _rows(said)
    assert here.column_names == said.column_names
    assert list(map(str, _kinds(here))) == list(map(str, _kinds(said)))
    assert frame._sheet.count() == len(said)


@pytest.mark.parametrize("stretches", [0, 1, 8])
def test_what_is_kept_is_the_same_in_stretches_and_in_rows(stretches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet, "FEW_STRETCHES", stretches)
    cut = pa.concat_tables([ROWS.slice(0, 3), ROWS.slice(3)])
    for name, keeps in (("held", [0, 3, 6, 7]), ("none", []), ("all", [*range(8)])):
        holds = ROWS.column("held") if name == "held" else pa.array([number in keeps for number in range(8)])
        frame = LocalSession().frame_of(cut.append_column("holds", holds)).where("holds").select(*ROWS.column_names)
        kept = frame.toArrow()
        assert _rows(kept) == _rows(ROWS.take(pa.array(keeps, pa.int64()))) and kept.schema == ROWS.schema


def _kinds(table: pa.Table) -> list[pa.DataType]:
    """Without the names of lists' elements."""
    return [kind.value_type if pa.types.is_list(kind) else kind for kind in table.schema.types]


@pytest.mark.parametrize("name", IN_DUCKDB)
def test_what_it_would_see_otherwise_is_left_to_duckdb(name: str) -> None:
    frame = _asked(IN_DUCKDB[name])
    assert frame._sheet is None or _refuses(frame._sheet)
    assert sorted(_rows(frame.toArrow())) == sorted(_rows(frame._asking.run(frame._sql())))


def _refuses(sheet: Sheet) -> bool:
    with pytest.raises((NoFormulaError, pa.ArrowException)):
        sheet.table()
    return True


def test_no_duckdb_is_started_where_none_is_asked() -> None:
    frame = _asked(IN_ARROW["looked up"])
    assert len(frame.collect()) == frame.count() == 4
    assert "_connection" not in vars(frame._asking)
