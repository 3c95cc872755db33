"""A frame: a query of DuckDB's that has not run, and the names of its columns; and a sheet, where Arrow can do it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from purgatory_udf.backend.local import functions
from purgatory_udf.backend.local.column import Column, ColumnOrName, column, order_of, quoted
from purgatory_udf.backend.local.delta_files import Writer
from purgatory_udf.backend.local.duckdb_connection import Asking, as_rows
from purgatory_udf.backend.local.formula import NoFormulaError, of_column
from purgatory_udf.backend.local.sheet import Arranged, Part, Sheet, cut_apart, sheet_of
from purgatory_udf.backend.process_pool import cores, side_by_side

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

Condition = Column | str
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROWS_AT_ONCE = 10_000
# So that none waits long for another.
TASKS_A_CORE = 4

# Conditions in words that are columns' conditions as well.
_NULL = re.compile(r"(\w+) IS (NOT )?NULL")
_ALONE = re.compile(r"(?!true$|false$|null$)[a-z]\w*")

_JOINS = {"inner": "INNER JOIN", "left": "LEFT JOIN", "full": "FULL JOIN", "left_anti": "ANTI JOIN"}


class LocalFrame:
    """`source` is what stands behind FROM. Conditions wait for the columns that are chosen, so that of frames that are
    joined by a condition each can still be called by its name."""

    def __init__(
        self,
        asking: Asking,
        source: str,
        columns: Iterable[str],
        conditions: tuple[str, ...] = (),
        sheet: Sheet | None = None,
    ) -> None:
        self._asking = asking
        self._source, self._conditions = source, conditions
        self._sheet = sheet
        # Columns that no two rows have in common.
        self._unique: tuple[str, ...] = ()
        self.columns = list(columns)

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_") or name not in self.columns:
            raise AttributeError(name)
        return column(name)

    # What makes another frame of it.

    def alias(self, name: str) -> LocalFrame:
        return LocalFrame(self._asking, f"({self._sql()}) AS {quoted(name)}", self.columns)

    def where(self, condition: Condition) -> LocalFrame:
        holds = _condition(condition) if isinstance(condition, str) else condition
        sheet = self._sheet and self._sheet.where(holds.formula)
        return LocalFrame(self._asking, self._source, self.columns, (*self._conditions, f"({holds.sql})"), sheet)

    def select(self, *of: ColumnOrName | Sequence[ColumnOrName]) -> LocalFrame:
        chosen: list[tuple[Column, str]] = []
        for wanted in _flat(of):
            if isinstance(wanted, str) and wanted == "*":
                chosen += [(_of_name(name), name) for name in self.columns]
            else:
                chosen.append(_named(wanted, len(chosen)))
        return self._selected(chosen)

    def withColumns(self, of: dict[str, Column]) -> LocalFrame:  # noqa: N802
        """In the place of those that have these names, or behind all."""
        kept = [(of[name] if name in of else _of_name(name), name) for name in self.columns]
        return self._selected(
            [*kept, *((expression, name) for name, expression in of.items() if name not in self.columns)]
        )

    def withColumn(self, name: str, expression: Column) -> LocalFrame:  # noqa: N802
        return self.withColumns({name: expression})

    def withColumnRenamed(self, name: str, to: str) -> LocalFrame:  # noqa: N802
        return self._selected([(_of_name(known), to if known == name else known) for known in self.columns])

    def drop(self, *names: str) -> LocalFrame:
        return self.select(*(name for name in self.columns if name not in names))

    def distinct(self) -> LocalFrame:
        sheet = self._sheet and self._sheet.distinct()
        return self._of(f"SELECT DISTINCT * FROM ({self._sql()}) AS t", self.columns, sheet)

    def union(self, other: LocalFrame) -> LocalFrame:
        """By the places of columns."""
        sheet = self._sheet.union(other._sheet) if self._sheet and other._sheet else None
        return self._of(f"({self._sql()}) UNION ALL ({other._sql()})", self.columns, sheet)

    def unionByName(self, other: LocalFrame, allowMissingColumns: bool = False) -> LocalFrame:  # noqa: N802, N803
        if not allowMissingColumns and set(self.columns) != set(other.columns):
            raise ValueError(f"frames of {self.columns} and {other.columns}")
        names = [*self.columns, *(name for name in other.columns if name not in self.columns)]
        return self._with(names).union(other._with(names))

    def orderBy(self, *by: ColumnOrName) -> LocalFrame:  # noqa: N802
        keys = list(map(order_of, by))
        sheet = self._sheet and self._sheet.ordered([key.formula for key in keys])
        return self._of(f"{self._sql()} ORDER BY {', '.join(key.sql for key in keys)}", self.columns, sheet)

    sortWithinPartitions = orderBy  # noqa: N815

    def limit(self, most: int) -> LocalFrame:
        sheet = self._sheet and self._sheet.limit(most)
        return self._of(f"SELECT * FROM ({self._sql()}) AS t LIMIT {most}", self.columns, sheet)

    def repartition(self, *_: Any) -> LocalFrame:
        """All is in one part."""
        return self

    repartitionByRange = repartition  # noqa: N815
    coalesce = repartition

    def unpivot(self, ids: Sequence[str], values: Sequence[str], named: str, value: str) -> LocalFrame:
        each = functions.array(
            *(functions.struct(functions.lit(name).alias("name"), column(name).alias("value")) for name in values)
        )
        long = self.select(*ids, functions.explode(each).alias("_one"))
        return long.select(*ids, column("_one")["name"].alias(named), column("_one")["value"].alias(value))

    def join(self, other: LocalFrame, on: Column | str | Sequence[str], how: str = "inner") -> LocalFrame:
        kind = _JOINS[how]
        if isinstance(on, Column):
            source = f"{self._as_source('l')} {kind} {other._as_source('r')} ON {on.sql}"
            return LocalFrame(self._asking, source, [*self.columns, *other.columns])
        keys = [on] if isinstance(on, str) else list(on)
        rest = [name for name in other.columns if name not in keys and how != "left_anti"]
        chosen = [f"{_key(name, how) if name in keys else f'l.{quoted(name)}'}" for name in [*keys, *self._but(keys)]]
        chosen += [f"r.{quoted(name)}" for name in rest]
        names = [*keys, *self._but(keys), *rest]
        same = " AND ".join(f"l.{quoted(name)} = r.{quoted(name)}" for name in keys)
        listed = ", ".join(f"{sql} AS {quoted(name)}" for sql, name in zip(chosen, names, strict=True))
        sheet = None
        if (
            self._sheet
            and how in ("inner", "left")
            and len(set(names)) == len(names)
            and (other._sheet or set(keys) == set(other._unique))
        ):
            sheet = self._sheet.join(other.toArrow, keys, rest, inner=how == "inner")
        return self._of(
            f"SELECT {listed} FROM ({self._sql()}) AS l {kind} ({other._sql()}) AS r ON {same}", names, sheet
        )

    def crossJoin(self, other: LocalFrame) -> LocalFrame:  # noqa: N802
        both = f"SELECT * FROM ({self._sql()}) AS l CROSS JOIN ({other._sql()}) AS r"
        return self._of(both, [*self.columns, *other.columns])

    def groupBy(self, *by: ColumnOrName) -> Grouped:  # noqa: N802
        return Grouped(self, [_named(expression, place) for place, expression in enumerate(by)])

    def agg(self, *of: Column) -> LocalFrame:
        return self.groupBy().agg(*of)

    def mapInArrow(self, work: Work, schema: StructType) -> LocalFrame:  # noqa: N802
        from pyspark.sql.pandas.types import to_arrow_schema

        # A worker that makes objects of rows has those of one batch at a time.
        made = list(work(iter(self.toArrow().to_batches(max_chunksize=ROWS_AT_ONCE))))
        return frame_of(
            self._asking,
            pa.Table.from_batches(made, made[0].schema if made else to_arrow_schema(schema, timezone="UTC")),
        )

    def mapApart(self, work: Work, schema: pa.Schema, together: Sequence[str], task: str) -> LocalFrame:  # noqa: N802
        """As Spark's tasks do it, in as many processes as there are cores: rows that lie side by side and are the same
        in the columns `together` come to one. The column `task` has the task's number, if it is named."""
        (made,) = mapped_apart([(self, work, together)])
        if task:
            schema = schema.append(pa.field(task, pa.int32()))
            made = [[_numbered(batch, number, task) for batch in batches] for number, batches in enumerate(made)]
        return frame_of(self._asking, pa.Table.from_batches(list(chain.from_iterable(made)), schema))

    def cache(self) -> LocalFrame:
        return frame_of(self._asking, self.toArrow())

    persist = cache

    def unpersist(self) -> LocalFrame:
        return self

    # What runs it.

    def toArrow(self) -> pa.Table:  # noqa: N802
        if self._sheet:
            with suppress(NoFormulaError, pa.ArrowException):
                return self._sheet.table()
        return self._asking.run(self._sql())

    def in_parts(self, together: Sequence[str]) -> list[Part]:
        """About as much work each: `mapApart` says what the columns are."""
        most = TASKS_A_CORE * cores()
        if self._sheet:
            with suppress(NoFormulaError, pa.ArrowException):
                return self._sheet.in_parts(together, most)
        return cut_apart(Arranged(self._asking.run(self._sql())), together, most)

    def collect(self) -> list[Row]:
        return as_rows(self.toArrow())

    def toLocalIterator(self) -> Iterator[Row]:  # noqa: N802
        return iter(self.collect())

    def first(self) -> Row | None:
        return next(iter(self.limit(1).collect()), None)

    def head(self, most: int) -> list[Row]:
        return self.limit(most).collect()

    def count(self) -> int:
        if self._sheet:
            with suppress(NoFormulaError, pa.ArrowException):
                return self._sheet.count()
        return int(self.agg(functions.count("*")).toArrow()[0][0].as_py())

    def toPandas(self) -> pd.DataFrame:  # noqa: N802
        return self.toArrow().to_pandas()

    @property
    def sparkSession(self) -> Frames:  # noqa: N802
        return Frames(self._asking)

    @property
    def write(self) -> Writer:
        return Writer(self.toArrow)

    def _sql(self) -> str:
        return f"SELECT * FROM {self._source}{self._behind()}"

    def _behind(self) -> str:
        return f" WHERE {' AND '.join(self._conditions)}" if self._conditions else ""

    def _of(self, sql: str, columns: Iterable[str], sheet: Sheet | None = None) -> LocalFrame:
        return LocalFrame(self._asking, f"({sql}) AS t", columns, (), sheet)

    def _selected(self, chosen: Sequence[tuple[Column, str]]) -> LocalFrame:
        listed = ", ".join(f"{made.sql} AS {quoted(name)}" for made, name in chosen)
        sheet = self._sheet and self._sheet.select([(made.formula, name) for made, name in chosen])
        return self._of(f"SELECT {listed} FROM {self._source}{self._behind()}", [name for _, name in chosen], sheet)

    def _with(self, names: Sequence[str]) -> LocalFrame:
        return self._selected(
            [(_of_name(name) if name in self.columns else functions.lit(None), name) for name in names]
        )

    def _as_source(self, name: str) -> str:
        return f"({self._sql()}) AS {name}" if self._conditions or self._source.endswith(" AS t") else self._source

    def _but(self, names: Sequence[str]) -> list[str]:
        return [name for name in self.columns if name not in names]


class Frames:
    """What makes frames, for who has one."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def createDataFrame(self, rows: pa.Table) -> LocalFrame:  # noqa: N802
        return frame_of(self._asking, rows)


def frame_of(asking: Asking, rows: Any) -> LocalFrame:
    """Of a table or a dataset of Arrow's."""
    return LocalFrame(asking, asking.named(rows), rows.schema.names, (), sheet_of(rows))


Made = list[list[pa.RecordBatch]]


def mapped_apart(frames: Sequence[tuple[LocalFrame, Work, Sequence[str]]]) -> list[Made]:
    """What the work of each frame makes of its parts, which the same processes take. `mapApart` says what the columns
    are."""
    apart = [frame.in_parts(together) for frame, _, together in frames]
    parts = [(work, part) for (_, work, _), parts in zip(frames, apart, strict=True) for part in parts]

    def worked_on(part: tuple[Work, Part]) -> Iterator[pa.RecordBatch]:
        work, rows = part
        return work(iter(rows().to_batches(max_chunksize=ROWS_AT_ONCE)))

    if all(len(of_frame) == 1 for of_frame in apart):
        # Each is too little for a fork; and so are some of them.
        made = [list(worked_on(part)) for part in parts]
    else:
        # The last frame's first: it may be in one part, for which all would wait if it were begun last.
        made = side_by_side(worked_on, parts[::-1])[::-1]
    return [[made.pop(0) for _ in of_frame] for of_frame in apart]


def _numbered(batch: pa.RecordBatch, number: int, name: str) -> pa.RecordBatch:
    return batch.append_column(name, pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows))


class Grouped:
    def __init__(self, frame: LocalFrame, keys: Sequence[tuple[Column, str]]) -> None:
        self._frame, self._keys = frame, keys

    def agg(self, *of: Column) -> LocalFrame:
        chosen = [*self._keys, *(_named(expression, len(self._keys) + place) for place, expression in enumerate(of))]
        by = f" GROUP BY {', '.join(str(place + 1) for place in range(len(self._keys)))}" if self._keys else ""
        listed = ", ".join(f"{made.sql} AS {quoted(name)}" for made, name in chosen)
        sql = f"SELECT {listed} FROM {self._frame._source}{self._frame._behind()}{by}"
        keys, totals = chosen[: len(self._keys)], chosen[len(self._keys) :]
        sheet = self._frame._sheet and self._frame._sheet.grouped(
            [(made.formula, name) for made, name in keys], [(made.total, name) for made, name in totals]
        )
        made = self._frame._of(sql, [name for _, name in chosen], sheet)
        made._unique = tuple(name for _, name in self._keys)
        return made

    def count(self) -> LocalFrame:
        return self.agg(functions.count("*").alias("count"))


def _flat(of: Iterable[Any]) -> Iterator[ColumnOrName]:
    for wanted in of:
        if isinstance(wanted, list | tuple):
            yield from wanted
        else:
            yield wanted


def _named(expression: ColumnOrName, place: int) -> tuple[Column, str]:
    chosen = column(expression)
    return chosen, chosen.name or f"column{place}"


def _of_name(name: str) -> Column:
    """Whatever is in the name."""
    return Column(quoted(name), name, of_column(name))


def _condition(said: str) -> Column:
    conditions = [_NULL.fullmatch(part) for part in said.split(" AND ")]
    if all(conditions):
        named = [(column(match[1]), match[2]) for match in conditions if match]
        return reduce(and_, (each.isNotNull() if is_not else each.isNull() for each, is_not in named))
    return column(said) if _ALONE.fullmatch(said) else Column(said)


def _key(name: str, how: str) -> str:
    of = quoted(name)
    return f"coalesce(l.{of}, r.{of})" if how == "full" else f"l.{of}"
