"""Every invariant on valid tables, and on tables that violate it, in DuckDB and in Spark."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake

from purgatory_udf.answers.audit import InvariantCheck, audit, report, require_all
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.storage import run_records
from tests.support.outcome_folder import table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.backend.backend import Session

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

END_ONCE = "each operation of the trace ended at most once"
OPEN = "open operations match the run's record"
NO_ID_TWICE = "operation ids are unique"
IN_TIME = "completed or cancelled by the deadline"
AT_DEADLINE = "expired at the deadline"
WAIT = "wait_ms is the time from start to end"
WATCHES = "each watch belongs to an operation and ends by its deadline"
LINES = "every line was accepted or rejected"


def _at(ms: float) -> datetime:
    return START + timedelta(milliseconds=ms)


def _event(seq: int, type: str = "produce") -> dict[str, Any]:
    return {"seq": seq, "type": type, "event_time": _at(seq)}


def _end(operation_id: int, table: str, **changed: Any) -> dict[str, Any]:
    """Return the row of an operation that started 0.5 ms after its id's millisecond, with a deadline 10 ms later.

    It completed after 4 ms, or expired.
    """
    waited = 4 if table == "completions" else 10
    ended = _at(operation_id + waited) if table == "expirations" else _at(operation_id + waited + 0.25)
    times = {"started_at": _at(operation_id + 0.5), "deadline": _at(operation_id + 10)}
    ended_at = "completed_at" if table == "completions" else "expired_at"
    common = {"operation_id": operation_id, "kind": "produce", "wait_ms": waited, **times}
    return {**common, ended_at: ended, **changed}


def _watch(operation_id: int, **changed: Any) -> dict[str, Any]:
    times = {"started_at": _at(operation_id), "deadline": _at(operation_id + 10), "ended_at": _at(operation_id + 4.75)}
    return {"operation_id": operation_id, "kind": "produce", **times, **changed}


def _add(out: Path, table: str, *rows: dict[str, Any]) -> None:
    write_deltalake(str(out / table), table_of(table, rows), mode="append")


def _record(out: Path, *, drain: bool = False, finished: bool = True, **counts: int | dict[str, int]) -> None:
    texts = {"trace": {"events": str(out / "events")}, "configuration": {"drain": drain}, "counts": counts}
    run = {"run_id": "run-1", "job": "replay", "status": run_records.FINISHED if finished else run_records.RUNNING}
    row = run | {name: json.dumps(text) for name, text in texts.items()} | {"started_at": START, "versions": "{}"}
    write_deltalake(str(out / "runs"), table_of("runs", [row]), mode="overwrite")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid tables: operations 1 and 2 completed, 3 and 4 expired, 5 is open; one line was rejected."""
    out = tmp_path_factory.mktemp("sound")
    _add(out, "events", *map(_event, range(1, 6)), _event(9, "partition"))
    _add(out, "rejected_events", {"raw": "{", "reason": "not JSON", "source": "t.jsonl", "line": 7})
    _add(out, "completions", _end(1, "completions"), _end(2, "completions"))
    _add(out, "expirations", _end(3, "expirations"), _end(4, "expirations"))
    _add(out, "watches", *map(_watch, (1, 2, 2, 3, 4)))
    _record(out, open=1, lines=7)
    return out


@pytest.fixture
def out(sound: Path, tmp_path: Path) -> Path:
    """A copy of the valid tables that a test may change."""
    copy = tmp_path / "out"
    shutil.copytree(sound, copy)
    _record(copy, open=1, lines=7)
    return copy


def test_sound_tables_hold_every_invariant(without_spark: SparkSession, sound: Path) -> None:
    assert audit(without_spark, str(sound)) == [
        InvariantCheck(END_ONCE, 5, 0),
        InvariantCheck(OPEN, 1, 0, note="1 open"),
        InvariantCheck(NO_ID_TWICE, 4, 0),
        InvariantCheck(IN_TIME, 2, 0),
        InvariantCheck(AT_DEADLINE, 2, 0),
        InvariantCheck(WAIT, 4, 0),
        InvariantCheck(WATCHES, 5, 0),
        InvariantCheck(LINES, 7, 0, note="6 accepted, 1 rejected"),
    ]


def test_violations_are_listed_by_operation(session: Session, out: Path) -> None:
    # An operation that completed and expired; one without a request; one of a group, written twice.
    _add(out, "expirations", _end(1, "expirations"))
    _add(out, "completions", _end(77, "completions"), *[_end(90, "completions", kind="join")] * 2)
    # Operations of groups that violate one invariant each: late, late by a microsecond, with a wrong wait. The last one
    # completes in the last microsecond of its deadline's millisecond, which is in time.
    _add(out, "completions", _end(91, "completions", kind="sync", completed_at=_at(102), wait_ms=11))
    _add(out, "expirations", _end(92, "expirations", kind="sync", expired_at=_at(102.001)))
    _add(out, "expirations", _end(93, "expirations", kind="sync", wait_ms=9))
    _add(out, "completions", _end(94, "completions", kind="sync", completed_at=_at(104.999), wait_ms=10))
    # A watch without an operation, a watch after the deadline, an operation without an end, a line without an event.
    _add(out, "watches", _watch(66), _watch(4, ended_at=_at(15)))
    _add(out, "events", _event(6, "fetch"))
    # Cancellations: in time, of a completed operation, late.
    _add(out, "events", *map(_event, (7, 8)))
    _add(out, "cancellations", _end(7, "cancellations", cancelled_at=_at(11.25), wait_ms=4))
    _add(out, "cancellations", _end(2, "cancellations", cancelled_at=_at(10.25), wait_ms=4))
    _add(out, "cancellations", _end(8, "cancellations", cancelled_at=_at(19.25), wait_ms=11))
    _record(out, open=1, lines=11)
    expected = [
        InvariantCheck(END_ONCE, 9, 3, (1, 2, 77)),
        InvariantCheck(OPEN, 2, 1, (5, 6), "2 open, 1 expected"),
        InvariantCheck(NO_ID_TWICE, 12, 3, (1, 2, 90)),
        InvariantCheck(IN_TIME, 10, 2, (8, 91)),
        InvariantCheck(AT_DEADLINE, 5, 1, (92,)),
        InvariantCheck(WAIT, 15, 2, (2, 93)),
        InvariantCheck(WATCHES, 7, 2, (4, 66)),
        InvariantCheck(LINES, 11, 1, (), "9 accepted, 1 rejected"),
    ]
    assert audit(session, str(out)) == expected
    assert audit(LocalBackend(), str(out)) == expected


def test_drained_run_leaves_nothing_open(without_spark: SparkSession, out: Path) -> None:
    _record(out, drain=True, open=1, lines=7)
    broken = [finding for finding in audit(without_spark, str(out)) if finding.broken]
    assert broken == [InvariantCheck(OPEN, 1, 1, (5,), "1 open, 0 expected")]


def test_open_operations_of_groups_are_not_counted(without_spark: SparkSession, out: Path) -> None:
    _record(out, open=4, lines=7, groups={"open": 3})
    assert audit(without_spark, str(out))[1] == InvariantCheck(OPEN, 1, 0, note="1 open")
    _record(out, open=4, lines=7, groups={"open": 4})
    assert audit(without_spark, str(out))[1] == InvariantCheck(OPEN, 1, 1, (5,), "1 open, 0 expected")


def test_unfinished_run_may_lack_tables_and_ends(without_spark: SparkSession, out: Path) -> None:
    _record(out, drain=True, finished=False)
    shutil.rmtree(out / "expirations")
    findings = {finding.invariant: finding for finding in audit(without_spark, str(out))}
    assert findings[OPEN] == InvariantCheck(OPEN, 3, 0, note="3 open; the run has not finished")
    assert findings[AT_DEADLINE] == InvariantCheck(AT_DEADLINE, 0, 0)
    assert LINES not in findings


def test_lines_are_those_of_the_imported_events(sound: Path, tmp_path: Path) -> None:
    """The import is in another folder than the replay, and the replay's record counts no rejected lines."""
    imported, replayed = tmp_path / "imported", tmp_path / "replayed"
    shutil.copytree(sound, imported)
    shutil.copytree(sound, replayed, ignore=shutil.ignore_patterns("events", "rejected_events"))
    run = {"run_id": "run-1", "job": "replay", "status": run_records.FINISHED, "started_at": START, "versions": "{}"}
    trace, counts = {"trace": json.dumps({"events": f"{imported}/events"})}, json.dumps({"open": 1, "lines": 6})
    row = {**run, **trace, "configuration": "{}", "counts": counts}
    write_deltalake(str(replayed / "runs"), table_of("runs", [row]), mode="overwrite")
    row |= {"run_id": "ingest-1", "job": "ingest", "counts": json.dumps({"lines": 7})}
    write_deltalake(str(imported / "runs"), table_of("runs", [row]), mode="overwrite")
    assert audit(LocalBackend(), str(replayed))[-1] == InvariantCheck(LINES, 7, 0, note="6 accepted, 1 rejected")


def test_folder_without_a_run_is_reported(without_spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no replay is recorded in .*/runs"):
        audit(without_spark, str(tmp_path))


def test_missing_watches_are_an_error(sound: Path, tmp_path: Path) -> None:
    out = shutil.copytree(sound, tmp_path / "out", ignore=shutil.ignore_patterns("watches"))
    with pytest.raises(UserError, match=f"^{out}/watches: the table of run run-1 does not exist; restore it"):
        audit(LocalBackend(), str(out))


def test_report_is_table_and_violation_is_error() -> None:
    findings = [InvariantCheck(OPEN, 1, 0, note="1 open"), InvariantCheck(NO_ID_TWICE, 12345, 2, (3, 4))]
    assert report(findings) == [
        "Invariants",
        "  invariant                               checked  violated  examples",
        "  open operations match the run's record        1         0  1 open",
        "  operation ids are unique                 12,345         2  operation 3, 4",
    ]
    with pytest.raises(CheckFailedError, match="1 of 2 invariants are violated"):
        require_all(findings)
    require_all(findings[:1])
