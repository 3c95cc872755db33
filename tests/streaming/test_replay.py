"""A replay with Spark and Delta: its tables do not depend on batches and grouping."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from purgatory_udf.common.configuration import load_config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.storage import run_records
from purgatory_udf.storage.event_staging import write_in_time_order
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from purgatory_udf.streaming import replay_run
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.support import oracle_traces, small_spark
from tests.support.outcome_rows import outcomes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

Tables = dict[str, pa.Table]

TABLES = ("completions", "expirations", "watches", "purgatory_gauges")


def _write_events(spark: SparkSession, events: list[dict[str, Any]], folder: Path) -> str:
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    pq.write_table(event_table(events), folder / "events.parquet")
    frame = spark.read.parquet(str(folder / "events.parquet"))
    write_in_time_order(frame, str(folder / "events"), len(events), 50_000)
    return str(folder / "events")


def _rows(out: Path) -> Tables:
    """Return every table without `run_id`, sorted."""
    tables = {}
    for name in TABLES:
        table = DeltaTable(str(out / name)).to_pyarrow_table().drop_columns(["run_id"])
        order = [(column, "ascending") for column in table.column_names if column != "partitions"]
        tables[name] = table.sort_by(order)
    return tables


def _outcomes(tables: Tables) -> list[Outcome]:
    run = [pa.array([""] * tables[name].num_rows, pa.string()) for name in TABLES[:2]]
    completions, expirations = (
        tables[name].append_column("run_id", column) for name, column in zip(TABLES, run, strict=False)
    )
    return outcomes_of(completions, expirations)


@pytest.fixture(scope="module")
def trace() -> oracle_traces.OracleTrace:
    return oracle_traces.load("tiny-2")


@pytest.fixture(scope="module")
def events(spark: SparkSession, trace: oracle_traces.OracleTrace, tmp_path_factory: pytest.TempPathFactory) -> str:
    return _write_events(spark, trace.events, tmp_path_factory.mktemp("trace") / "in")


@pytest.fixture(scope="module")
def killed(events: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of a replay by partition, in batches of 450 events, that was killed after its first batch."""
    folder = tmp_path_factory.mktemp("killed")
    out = folder / "out"
    words = ["replay", "--events", events, "--out", str(out), "--batch-events", "450", "--set", "grouping=partition"]
    command = [str(Path(__file__).resolve().parents[2] / "spark-submit.sh"), *small_spark.ARGUMENTS, *words]
    # The command chooses its own Python, which may not be that of this process's session.
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    # In a new process group, so that the JVM is killed, too.
    with subprocess.Popen(
        command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "replay: batch 0" in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "".join(lines)
    return out


@pytest.fixture(scope="module")
def resumed(spark: SparkSession, events: str, killed: Path) -> tuple[Run, Tables]:
    """Run record and tables of the killed replay after it has been resumed."""
    stopped = run_records.load(spark, str(killed / "runs"), "replay")
    assert stopped is not None and stopped.status != run_records.FINISHED, "the replay was killed before its end"
    assert [entry.name for entry in killed.parent.iterdir()] == ["out"], "the replay writes only to its output folder"
    run = run_replay(
        spark, ReplayOptions(events, str(killed), load_config(None, ["batch_events=450", "grouping=partition"]))
    )
    assert Path(Layout(str(killed)).checkpoint("brokers"), "commits", "1").exists(), "there are several batches"
    return run, _rows(killed)


def test_trace_without_groups_has_no_group_query(resumed: tuple[Run, Tables], killed: Path) -> None:
    run, _ = resumed
    assert "groups" not in run.counts
    checkpoints = Path(Layout(str(killed)).checkpoint("groups")).parent
    assert sorted(entry.name for entry in checkpoints.iterdir()) == ["brokers", "partitions"]


def test_killed_replay_resumes_with_kafkas_outcomes(
    trace: oracle_traces.OracleTrace, resumed: tuple[Run, Tables]
) -> None:
    run, tables = resumed
    assert run.counts["open"] == 0
    assert trace.rows(_outcomes(tables)) == trace.outcomes


def test_one_batch_by_shard_has_same_tables(
    spark: SparkSession, events: str, tmp_path: Path, resumed: tuple[Run, Tables]
) -> None:
    """The run has seven shuffle partitions, and was interrupted before the first table was created."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    run, tables = resumed
    usual = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        options = ReplayOptions(
            events, str(tmp_path / "out"), load_config(None, ["grouping=shard", "grouping_shards=3"])
        )
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(replay_run, "replay_queries", stop)
            run_replay(spark, options)
        again = run_replay(spark, options)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(usual))
    assert again.run_id == run.run_id, "grouping and batch size do not affect the results of a run"
    assert _rows(tmp_path / "out") == tables
