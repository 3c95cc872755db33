"""The laws that a run's tables keep, checked on the tables themselves.

A  every operation of the trace is in exactly one of completions, expirations, cancellations, or the run's count of open
B  no operation id twice
C  a completion or cancellation comes no later than its deadline (in whole milliseconds, as purgatory time counts)
D  an expiration comes at its deadline
E  a wait is the whole milliseconds between start and end
F  a watch belongs to an operation of the trace, and ends no later than its deadline
G  accepted and rejected lines are the lines that were read
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.console import Table
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.contract.tables import ENDS, TABLES
from purgatory_udf.storage import delta_tables, run_records
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

EXAMPLES = 5

# Which events ask for an operation, and which kinds of operations those are. A group's operations follow from its
# whole history, not from single events: only laws B to E speak of them.
REQUESTS = ("produce", "fetch", "delete_records", "create_topics")


@dataclass(frozen=True)
class Finding:
    """A law, how many things it was held against, how many broke it, and some of these by operation id."""

    law: str
    checked: int
    broken: int
    examples: tuple[int, ...] = ()
    note: str = ""

    def __add__(self, other: Finding) -> Finding:
        """The same law, held against the rows of another table too."""
        examples = tuple(sorted({*self.examples, *other.examples})[:EXAMPLES])
        return Finding(self.law, self.checked + other.checked, self.broken + other.broken, examples, self.note)


def audit(spark: SparkSession, out: str) -> list[Finding]:
    """Hold every law against the tables of the latest run under `out`."""
    return list(_Run(spark, out).findings())


def report(findings: list[Finding]) -> list[str]:
    """The laws as lines to read."""
    rows = [(law.law, law.checked, law.broken, _remark(law)) for law in findings]
    return Table("Laws", ("law", "checked", "broken", "for example"), rows).lines()


def require_all(findings: list[Finding]) -> None:
    """Raise if a law is broken."""
    broken = [finding for finding in findings if finding.broken]
    if broken:
        raise CheckFailedError(f"{len(broken)} of {len(findings)} laws are broken")


def _remark(finding: Finding) -> str:
    operations = "operation " + ", ".join(map(str, finding.examples)) if finding.examples else ""
    return "; ".join(filter(None, [operations, finding.note])) or "-"


class _Run:
    """One run's record and tables."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._layout = Layout(out)
        run = run_records.load(spark, self._layout.table("runs"), "replay")
        if run is None:
            raise UserError(f"{out}: no replay is recorded in {self._layout.table('runs')}")
        self._run = run
        self._finished = run.status == run_records.FINISHED
        self._events_path = run_records.events_of(spark, out, run)

    def findings(self) -> Iterator[Finding]:
        completions, expirations, cancellations = map(self._ends, ENDS)
        yield from self._one_end(completions, expirations, cancellations)
        completed_in_time, cancelled_in_time = (
            _Law("completed or cancelled no later than the deadline", _ms(at) <= _ms("deadline"))
            for at in ("completed_at", "cancelled_at")
        )
        at_deadline = _Law("expired at the deadline", sf.col("expired_at") == sf.col("deadline"))
        completed = _held(completions, completed_in_time, _waited("completed_at"))
        expired = _held(expirations, at_deadline, _waited("expired_at"))
        cancelled = _held(cancellations, cancelled_in_time, _waited("cancelled_at"))
        yield from (completed[0] + cancelled[0], expired[0], completed[1] + expired[1] + cancelled[1])
        if delta_tables.is_table(self._spark, self._layout.table("watches")):
            yield self._watches()
        lines = self._lines()
        if lines:
            yield lines

    def _one_end(self, *tables: DataFrame) -> Iterator[Finding]:
        """Laws A and B, in one pass over all operation ids."""
        no, yes, is_request = sf.lit(0), sf.lit(1), sf.col("kind").isin(*REQUESTS).cast("int")
        asked = self._asked().select("operation_id", yes.alias("asked"), no.alias("answers"), no.alias("ends"))
        ends = (table.select("operation_id", no, is_request, yes) for table in tables)
        per_id = reduce(lambda left, right: left.union(right), ends, asked).groupBy("operation_id")
        ids = per_id.agg(*(sf.sum(name).alias(name) for name in ("asked", "answers", "ends")))
        still_open = (sf.col("asked") == 1) & (sf.col("ends") == 0)
        once, no_id_twice, is_open = _held(
            ids,
            _Law(
                "each operation of the trace ended at most once",
                (sf.col("asked") == 1) & (sf.col("answers") <= 1),
                among=(sf.col("asked") > 0) | (sf.col("answers") > 0),
            ),
            _Law("no operation id twice", sf.col("ends") == 1, among=sf.col("ends") > 0),
            _Law("open", ~still_open),
        )
        yield once
        yield self._open(is_open)
        yield no_id_twice

    def _open(self, finding: Finding) -> Finding:
        """The operations without an end against those that the run counted: none at all if it was drained."""
        expected: int = finding.broken
        note = f"{finding.broken:,} open"
        if not self._finished:
            note += "; the run has not finished"
        elif self._run.configuration.get("drain"):
            expected = 0
        else:
            # A group's operations are not asked for by events of their own: those left open are not among these.
            of_groups = int(self._run.counts.get("groups", {}).get("open", 0))
            expected = int(self._run.counts.get("open", finding.broken + of_groups)) - of_groups
        wrong = abs(finding.broken - expected)
        if wrong:
            note += f", {expected:,} expected"
        examples = finding.examples if wrong else ()
        return Finding("open are those that the run left open", finding.broken, wrong, examples, note)

    def _watches(self) -> Finding:
        watches = self._table("watches").where(sf.col("kind").isin(*REQUESTS))
        known = self._asked().withColumn("known", sf.lit(True))
        watches = watches.join(known, "operation_id", "left")
        in_time = _ms("ended_at") <= _ms("deadline")
        law = _Law("a watch is an operation's, and ends by its deadline", sf.col("known").isNotNull() & in_time)
        return _held(watches, law)[0]

    def _lines(self) -> Finding | None:
        """None where nobody counted the lines: the events came from elsewhere."""
        record = run_records.load(self._spark, self._layout.table("runs"), "ingest") or self._run
        lines = record.counts.get("lines")
        # While events still come, nobody has counted their lines.
        if lines is None or record.status != run_records.FINISHED:
            return None
        rejected_path = f"{self._events_path.rstrip('/').rpartition('/')[0]}/rejected_events"
        rejected = self._load(rejected_path).count() if delta_tables.is_table(self._spark, rejected_path) else 0
        accepted = self._load(self._events_path).count()
        note = f"{accepted:,} accepted, {rejected:,} rejected"
        return Finding("accepted and rejected lines are all lines", lines, abs(lines - accepted - rejected), (), note)

    def _asked(self) -> DataFrame:
        if not delta_tables.is_table(self._spark, self._events_path):
            raise UserError(f"{self._events_path}: the events that run {self._run.run_id} replayed are not there")
        events = self._load(self._events_path).where(sf.col("type").isin(*REQUESTS))
        return events.select(sf.col("seq").alias("operation_id"))

    def _ends(self, name: str) -> DataFrame:
        """Replays of earlier versions cancelled nothing; one that goes on makes some tables with their first rows."""
        late = name == "cancellations" or not self._finished
        if late and not delta_tables.is_table(self._spark, self._layout.table(name)):
            return self._spark.createDataFrame([], from_arrow_schema(TABLES[name]))
        return self._table(name)

    def _table(self, name: str) -> DataFrame:
        return self._load(self._layout.table(name))

    def _load(self, path: str) -> DataFrame:
        """Of a run that goes on, as it is now: the outcomes first, then the events, for each outcome has its event."""
        if self._finished:
            return self._spark.read.format("delta").load(path)
        return delta_tables.as_of_now(self._spark, path)


@dataclass(frozen=True)
class _Law:
    """What must hold for each row of those `among` which it is asked."""

    name: str
    holds: Column
    among: Column | None = None


def _held(rows: DataFrame, *laws: _Law) -> list[Finding]:
    """Hold laws against the rows in one pass; one that cannot be decided (a null) is broken."""
    counts, broken = [], []
    for at, law in enumerate(laws):
        among = sf.lit(True) if law.among is None else law.among
        broken.append(among & ~sf.coalesce(law.holds, sf.lit(False)))
        counts += [sf.count_if(among).alias(f"checked{at}"), sf.count_if(broken[at]).alias(f"broken{at}")]
    counted = rows.agg(*counts).first()
    assert counted is not None
    return [
        Finding(
            law.name,
            counted[f"checked{at}"],
            counted[f"broken{at}"],
            _some(rows.where(broken[at])) if counted[f"broken{at}"] else (),
        )
        for at, law in enumerate(laws)
    ]


def _waited(ended_at: str) -> _Law:
    return _Law("waited from start to end", sf.col("wait_ms") == _ms(ended_at) - _ms("started_at"))


def _some(rows: DataFrame) -> tuple[int, ...]:
    ids = rows.select("operation_id").distinct().orderBy("operation_id").limit(EXAMPLES)
    return tuple(row.operation_id for row in ids.collect())


def _ms(column: str) -> Column:
    return sf.unix_millis(column)
