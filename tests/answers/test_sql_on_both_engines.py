"""Every query of `answers/sql` returns the same rows in DuckDB and in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from purgatory_udf.answers import run_tables
from purgatory_udf.answers.evidence import collect
from purgatory_udf.answers.metrics import Metrics, read_metrics
from purgatory_udf.answers.outcome_comparison import PARTS
from purgatory_udf.answers.run_tables import RunTables, sql_file
from purgatory_udf.answers.variants import VariantChanges
from purgatory_udf.backend.backend import LocalBackend, Session
from purgatory_udf.backend.sql_database import parameters_of
from purgatory_udf.common.configuration import load_config
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.rules.purgatory.clock import STEP_MS
from tests.support.outcome_folder import sample_with_group, write_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis

SQL = Path(run_tables.__file__).parent / "sql"
NAMES = sorted(file.relative_to(SQL).as_posix().removesuffix(".sql") for file in SQL.rglob("*.sql"))
# A value for each parameter of any query; `FEW` limits rows to fewer than there are.
FEW = 3
PARAMETERS: dict[str, Any] = {
    "window_ms": 500,
    "bin_ms": 1000,
    "step_ms": STEP_MS,
    "bytes_per_watch": 184,
    **dict.fromkeys(("by_broker", "by_topic", "by_partition", "by_client", "by_group"), True),
    "by": "client",
    **dict.fromkeys(("top", "most", "most_states", "of_each"), FEW),
    "parts": PARTS,
    "request_id": "checkout-web-672",
    "client": "checkout-web",
    "late_ms": 0,
    "group": "g",
    "member": "",
    "topic": "orders",
    "partition": 0,
    "offset": 7,
    "from_us": 0,
    "until_us": 1 << 62,
    "last_us": 1 << 62,
    "slow_ms": 10,
    "large_bytes": 10,
    "slack_ms": 0,
    "longest_ms": 1,
    "expected": 1,
    "replica": 3,
    "broker": 1,
}


def _tables_of(name: str) -> set[str]:
    """Return the tables and views that a query reads, also through views."""
    reads = {*sql_file(name).reads}
    return reads.union(*(_tables_of(f"views/{read}") for read in reads if f"views/{read}" in NAMES))


# The story has no tables of a request log or a simulation; tests of `fidelity` and `what-if` have them.
OF_OTHERS = {name for name in NAMES if {"recorded", "fidelity", "truth_requests"} & _tables_of(name)}
# Nothing of the kind happens in the story.
WITHOUT_ROWS = (
    "views/cancelled",
    "views/below_min_isr",
    "views/unnamed_sessions",
    "diagnosis/cancellations",
    "diagnosis/stops",
    "diagnosis/leader_moves",
    "diagnosis/remote_waits",
    "diagnosis/usual_remote_wait",
    "diagnosis/throttles",
    "diagnosis/lost_locks",
    "explain/remote_reads",
    "explain/deliveries",
    "explain/record",
    "explain/pauses",
    "views/pauses",
    "metrics_command/held_back",
    "metrics_tables/share_fetches",
    "metrics_tables/deliveries",
    "metrics_command/share_fetches",
    "metrics_command/deliveries",
    "prometheus/deliveries",
    "prometheus/held_back",
    "metrics_command/consumer_rebalances",
    "views/consumer_rebalances",
)
# Queries of two runs.
OF_CHANGES = ["certainty", "changes", "counts", "differing"]
ALONE = sorted({*NAMES} - OF_OTHERS - {f"what_if/{name}" for name in OF_CHANGES})


def _member(second: float, member: str, state: str, assigned: list[int], owner: str = "") -> dict[str, Any]:
    """A change of a member of group `g`, which may wait for partition 1 of an owner."""
    return {
        "run_id": "run-1",
        "broker": 1,
        "group": "g",
        "at": STORY_START + timedelta(seconds=second),
        "member_id": member,
        "to_state": state,
        "reason": f"{member} at {second}",
        "epoch": 2,
        "assigned": [{"topic": "t", "partition": number} for number in assigned],
        "revoking": [{"topic": "t", "partition": 1}] if state == "UNREVOKED_PARTITIONS" else [],
        "held_by": [{"topic": "t", "partition": 1, "member_id": owner}] if owner else [],
        "classic": False,
    }


STORY_START = datetime(2026, 3, 2, 9, tzinfo=UTC)
# The story has no consumer group.
MEMBERS = [
    _member(1, "a", "STABLE", [0, 1]),
    _member(2, "b", "UNRELEASED_PARTITIONS", [], "a"),
    _member(2.5, "a", "UNREVOKED_PARTITIONS", [0]),
    _member(3, "a", "REMOVED", []),
    _member(4, "b", "STABLE", [0, 1]),
    _member(4.5, "c", "UNRELEASED_PARTITIONS", [], "b"),
]


def _views_in_order() -> list[str]:
    """Return the views of the story, each after those that it reads."""
    reads = {
        name.removeprefix("views/"): [read for read in sql_file(name).reads if f"views/{read}" in ALONE]
        for name in ALONE
        if name.startswith("views/")
    }
    return list(TopologicalSorter(reads).static_order())


@contextmanager
def _opened(session: Session, out: Path) -> Iterator[RunTables]:
    """The tables of the story, its metrics, and what `explain` registers for its slowest operations."""
    tables = read_metrics(session, str(out)).tables
    tables.add_rows("member_transitions", pa.Table.from_pylist(MEMBERS, schema=TABLES["member_transitions"]))
    # Spark plans the views of a query again unless they are kept, which takes most of the time here.
    with tables.materialized(*_views_in_order()):
        collect(tables, [row["operation_id"] for row in tables.rows("report/slowest", of_each=FEW)])
        tables.add_table("found", tables.layout.table("findings"), TABLES["findings"])
        yield tables


@pytest.fixture(scope="module")
def by_spark(spark: SparkSession, metrics: Metrics, diagnosis: Diagnosis, story_folder: Path) -> Iterator[RunTables]:
    with _opened(spark, story_folder) as tables:
        yield tables


@pytest.fixture(scope="module")
def by_duckdb(metrics: Metrics, diagnosis: Diagnosis, story_folder: Path) -> Iterator[RunTables]:
    with _opened(LocalBackend(), story_folder) as tables:
        yield tables


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALONE)
def test_both_engines_return_the_same_rows(name: str, by_spark: RunTables, by_duckdb: RunTables) -> None:
    in_spark = by_spark.query(name, **PARAMETERS)
    in_duckdb = by_duckdb.query(name, **PARAMETERS)
    assert in_duckdb.column_names == in_spark.column_names
    assert _rows(name, in_duckdb) == _rows(name, in_spark)
    assert in_duckdb.num_rows or name in WITHOUT_ROWS


@pytest.fixture(scope="module")
def half_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of the story with half the timeouts."""
    out = tmp_path_factory.mktemp("half") / "out"
    write_folder(out, sample_with_group(), load_config(None, ["produce.timeout_ms=x0.5", "fetch.max_wait_ms=x0.5"]))
    return out


@pytest.mark.nightly
@pytest.mark.parametrize("reacting", [False, True])
def test_both_engines_find_the_same_changes(
    reacting: bool, spark: SparkSession, story_folder: Path, half_folder: Path
) -> None:
    folders = str(story_folder), str(half_folder)
    in_spark = VariantChanges(spark, *folders, reacting=reacting)
    in_duckdb = VariantChanges(LocalBackend(), *folders, reacting=reacting)
    assert in_duckdb.certainty() == in_spark.certainty() != []
    for name in OF_CHANGES:
        in_duckdb_rows, in_spark_rows = (sorted(changes.rows(name), key=repr) for changes in (in_duckdb, in_spark))
        assert in_duckdb_rows == in_spark_rows != []


def _rows(name: str, table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    is_ordered = "\nORDER BY" in sql_file(name).text
    return rows if is_ordered else sorted(rows, key=repr)


@pytest.mark.parametrize("name", NAMES)
def test_header_lists_what_the_query_needs(name: str) -> None:
    """`Reads` names its tables and views, `Parameters` its parameters."""
    file = sql_file(name)
    header, _, query = file.text.partition("\n\n")
    assert all(line.startswith("--") for line in header.splitlines())
    documented = {word.strip(",:") for word in header.split() if word.startswith(":")}
    assert documented == parameters_of(query) <= PARAMETERS.keys()
    assert {*file.reads} == _sources(query)


def _sources(query: str) -> set[str]:
    """Return the tables and views of a query, without its common table expressions."""
    query = query.replace("DISTINCT FROM", "<>")
    words = query.replace("(", " ( ").replace(")", " ) ").replace(",", " ").split()
    after = {word for before, word in pairwise(words) if before in ("FROM", "JOIN") and word != "("}
    own = {words[at - 1] for at, word in enumerate(words) if word == "AS" and words[at + 1 : at + 2] == ["("]}
    return after - own
