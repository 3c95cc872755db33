"""A cluster whose workers have nothing of ours says what one machine says, also when it loses a worker."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs import audit, replay
from purgatory_udf.backend.dialect import locally
from purgatory_udf.launch import package_archive
from purgatory_udf.streaming.replay_run import tasks
from tests.cluster.standalone import SOON_OVER, Cluster, standalone

pytestmark = [pytest.mark.end_to_end, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "conf" / "sample" / "trace.jsonl"
TABLES = ("events", "completions", "expirations", "watches", "purgatory_gauges")
# Of some 1,700 events: two batches and two for the clock, so that there is a middle in which a worker can be lost.
REPLAY = ("--trace", str(SAMPLE), "--batch-events", "900")


def start(*words: str) -> subprocess.Popen[str]:
    """`./spark-submit.sh` with these words, as a user without settings of their own starts it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    command = [str(ROOT / "spark-submit.sh"), *words]
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(*words: str) -> str:
    """What it said; it must have succeeded."""
    return ended(start(*words))


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def rows(out: Path, table: str) -> list[str]:
    return sorted(map(str, DeltaTable(str(out / table)).to_pyarrow_table().to_pylist()))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment, made by the one command."""
    file = tmp_path_factory.mktemp("package") / "purgatory-env.tar.gz"
    assert str(file) in run("package", "--out", str(file))
    return file


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same replay on one machine, in one process and without Spark, where all of it is one batch."""
    out = tmp_path_factory.mktemp("local") / "out"
    with locally():
        assert replay.main.status(["--trace", str(SAMPLE), "--out", str(out)]) == 0
    return out


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone(tmp_path) as running:
        yield running


def test_a_cluster_that_loses_a_worker_in_the_middle_makes_the_same_tables_as_one_machine(
    cluster: Cluster, archive: Path, local: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    there = ("--master", cluster.master, "--archives", str(archive), *SOON_OVER)
    command = start(*there, "replay", *REPLAY, "--out", str(out))
    while not list(out.glob("_replay/**/commits/0")):
        try:
            command.wait(0.1)
            raise AssertionError(f"it ended before a batch had:\n{ended(command)}")
        except subprocess.TimeoutExpired:
            pass
    cluster.lose(0)
    ended(command)
    for table in TABLES:
        assert rows(out, table) == rows(local, table), table
    assert rows(out, "completions")
    stores = [store.name for store in out.glob("_replay/checkpoints/partitions/state/0/*") if store.name.isdigit()]
    assert len(stores) == tasks(2), "as suits two cores, for nobody has said otherwise"
    with locally():
        assert audit.main.status(["--out", str(out)]) == 0


def test_an_archive_of_other_sources_is_refused(tmp_path: Path) -> None:
    """Workers would compute with another version than the driver."""
    archive, manifest = tmp_path / "old.tar.gz", tmp_path / package_archive.MANIFEST
    manifest.write_text('{"purgatory_replay": "0.0.9", "python": "3.11", "sources": "0123456789abcdef"}')
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(manifest, manifest.name)
    process = start(
        "--master",
        "spark://nowhere:7077",
        "--archives",
        f"{archive}#environment",
        "replay",
        "--events",
        "e",
        "--out",
        "o",
    )
    said, _ = process.communicate()
    assert (process.returncode, said) == (
        2,
        f"spark-submit.sh: {archive}: was created from other sources; create it again with ./spark-submit.sh package\n",
    )


def test_a_python_driver_in_a_standalone_cluster_is_refused_in_a_sentence(archive: Path) -> None:
    words = ["--master", "spark://nowhere:7077", "--deploy-mode", "cluster", "--archives", str(archive)]
    process = start(*words, "replay", "--events", "/events", "--out", "/out")
    said, _ = process.communicate()
    assert (process.returncode, said) == (
        2,
        "spark-submit.sh: --deploy-mode cluster: a standalone master runs no Python driver in the cluster, only client "
        "mode is possible with spark://; start the command on a machine that the workers can reach\n",
    )
