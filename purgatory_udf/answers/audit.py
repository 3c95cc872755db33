"""The invariants of a run's tables, checked on the tables themselves.

The queries of `sql/audit` select operations, with a column for each invariant: true if the operation keeps it, false
if it violates it, null if the invariant does not apply to the operation.

Two more invariants compare the tables with the counts in the run's record: the number of open operations, and the
numbers of lines that the import accepted and rejected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.common.console import Table, report_step
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.contract.tables import ENDS, TABLES
from purgatory_udf.storage import run_records

if TYPE_CHECKING:
    from purgatory_udf.backend.backend import Session

MAX_EXAMPLES = 5

# The invariants of each query, by column.
INVARIANTS = {
    "operations": {
        "ended_once": "each operation of the trace ended at most once",
        "has_ended": "open operations match the run's record",
        "is_unique": "operation ids are unique",
    },
    "times": {
        "by_deadline": "completed or cancelled by the deadline",
        "at_deadline": "expired at the deadline",
        "waited_until_end": "wait_ms is the time from start to end",
    },
    "watches": {"is_valid": "each watch belongs to an operation and ends by its deadline"},
}
_EXAMPLES = """
    SELECT DISTINCT operation_id FROM ({query}) checked WHERE NOT {column} ORDER BY operation_id LIMIT {most}
"""


@dataclass(frozen=True)
class InvariantCheck:
    """Result for one invariant: the numbers of checked rows and of violations, and ids of some violating operations."""

    invariant: str
    checked: int
    broken: int
    examples: tuple[int, ...] = ()
    note: str = ""


def audit(session: Session, out: str) -> list[InvariantCheck]:
    """Check every invariant on the tables of the latest replay under `out`."""
    return list(_Audit(session, out).findings())


def report(findings: list[InvariantCheck]) -> list[str]:
    """Return the results as the lines of a text table, with a row for each invariant."""
    rows = [(finding.invariant, finding.checked, finding.broken, _remark(finding)) for finding in findings]
    return Table("Invariants", ("invariant", "checked", "violated", "examples"), rows).lines()


def as_json(findings: list[InvariantCheck]) -> dict[str, Any]:
    """Return the results as a JSON object; `examples` are ids of operations that violate the invariant."""
    return {
        "violated": sum(1 for finding in findings if finding.broken),
        "invariants": [
            {
                "invariant": finding.invariant,
                "checked": finding.checked,
                "violations": finding.broken,
                "examples": list(finding.examples),
                "note": finding.note or None,
            }
            for finding in findings
        ],
    }


def require_all(findings: list[InvariantCheck]) -> None:
    """Raise `CheckFailedError` if an invariant is violated."""
    broken = [finding for finding in findings if finding.broken]
    if broken:
        names = "; ".join(finding.invariant for finding in broken)
        raise CheckFailedError(f"{len(broken)} of {len(findings)} invariants are violated: {names}")


def _remark(finding: InvariantCheck) -> str:
    operations = "operation " + ", ".join(map(str, finding.examples)) if finding.examples else ""
    return "; ".join(filter(None, [operations, finding.note])) or "-"


class _Audit:
    """Checks the invariants of one run's tables; `findings` yields the result for each invariant."""

    def __init__(self, session: Session, out: str) -> None:
        self._spark = session
        self._tables = RunTables(session, out, require_all_rows=False)
        self._run = self._tables.run

    def findings(self) -> Iterator[InvariantCheck]:
        # In a running replay, every outcome has its event only if outcomes are read before events.
        self._require_tables(*ENDS)
        self._require_tables("events")
        ended_once, has_ended, is_unique = self._check("operations")
        yield from (ended_once, self._open(has_ended), is_unique)
        yield from self._check("times")
        self._require_tables("watches")
        if self._tables.has("watches"):
            yield from self._check("watches")
        lines = self._lines()
        if lines:
            yield lines

    def _require_tables(self, *names: str) -> None:
        """Check that tables exist which the run must have written or read.

        Raises:
            UserError: A table is missing.
        """
        for name in names:
            # Earlier versions cancelled no operations, and a running replay creates some tables with their first rows.
            may_be_missing = name != "events" and (name == "cancellations" or not self._tables.finished)
            if self._tables.has(name) or may_be_missing:
                continue
            if name == "events":
                path = self._tables.events_path
                raise UserError(f"{path}: the events of run {self._run.run_id} do not exist; restore the table")
            raise UserError(
                f"{self._tables.layout.table(name)}: the table of run {self._run.run_id} does not exist; restore it, "
                "or rerun the replay with --overwrite"
            )

    def _check(self, query: str) -> list[InvariantCheck]:
        """Run a query of `sql/audit` and return a finding for each of its invariants."""
        report_step(f"checking {query}")
        selected, invariants = self._tables.text(f"audit/{query}"), INVARIANTS[query]
        counts = (f"count({column}) AS {column}, count_if(NOT {column}) AS not_{column}" for column in invariants)
        (counted,) = self._rows(f"SELECT {', '.join(counts)} FROM ({selected}) checked")
        findings = []
        for column, invariant in invariants.items():
            examples: tuple[int, ...] = ()
            if counted[f"not_{column}"]:
                some = self._rows(_EXAMPLES.format(query=selected, column=column, most=MAX_EXAMPLES))
                examples = tuple(row["operation_id"] for row in some)
            findings.append(InvariantCheck(invariant, counted[column], counted[f"not_{column}"], examples))
        return findings

    def _open(self, has_ended: InvariantCheck) -> InvariantCheck:
        """Compare the number of operations without an end with the run's count of open operations.

        The count is 0 for a drained run. `has_ended` is the result of the query for these operations.
        """
        found = has_ended.broken
        expected, note = found, f"{found:,} open"
        if not self._tables.finished:
            note += "; the run has not finished"
        elif self._run.configuration.get("drain"):
            expected = 0
        else:
            # The run also counts open operations of groups, which have no event of their own.
            of_groups = int(self._run.counts.get("groups", {}).get("open", 0))
            expected = int(self._run.counts.get("open", found + of_groups)) - of_groups
        wrong = abs(found - expected)
        if wrong:
            note += f", {expected:,} expected"
        examples = has_ended.examples if wrong else ()
        return InvariantCheck(has_ended.invariant, found, wrong, examples, note)

    def _lines(self) -> InvariantCheck | None:
        """Compare the number of imported lines with the number of events. None if the import has no count of lines."""
        folder = self._tables.events_path.rstrip("/").rpartition("/")[0] or "."
        record = run_records.load(self._spark, f"{folder}/runs", "ingest") or self._run
        lines = record.counts.get("lines")
        if lines is None or record.status != run_records.FINISHED:
            return None
        self._tables.add_table("rejected_events", f"{folder}/rejected_events", TABLES["rejected_events"])
        accepted, rejected = (
            self._rows(f"SELECT count(*) AS rows FROM {name}")[0]["rows"] for name in ("events", "rejected_events")
        )
        note = f"{accepted:,} accepted, {rejected:,} rejected"
        return InvariantCheck("every line was accepted or rejected", lines, abs(lines - accepted - rejected), (), note)

    def _rows(self, query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._tables.database.query(query).to_pylist()
        return rows
