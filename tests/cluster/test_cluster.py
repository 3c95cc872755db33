"""A cluster with bare workers gives the same tables as one machine, even if it loses a worker."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs import audit, replay
from purgatory_udf.launch import package_archive
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.streaming.replay_run import shuffle_partitions
from tests.cluster.standalone import SMALL_JOB, Cluster, standalone

pytestmark = [pytest.mark.long, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "conf" / "sample" / "trace.jsonl"
TABLES = ("events", "completions", "expirations", "watches", "purgatory_gauges")
# 1,700 events in two batches, and two batches for the clock, so that a worker can be lost in the middle.
REPLAY = ("--trace", str(SAMPLE), "--batch-events", "900")


def start(*words: str) -> subprocess.Popen[str]:
    """Start `./spark-submit.sh` without environment variables of Python and Spark."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    command = [str(ROOT / "spark-submit.sh"), *words]
    return subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(*words: str) -> str:
    """Run `./spark-submit.sh`, which must succeed, and return its output."""
    return wait_for_success(start(*words))


def wait_for_success(process: subprocess.Popen[str]) -> str:
    """Wait for a command, which must succeed, and return its output."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def rows(out: Path, table: str) -> list[str]:
    return sorted(map(str, DeltaTable(str(out / table)).to_pyarrow_table().to_pylist()))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment for workers, built by `package`."""
    file = tmp_path_factory.mktemp("package") / "purgatory-env.tar.gz"
    assert str(file) in run("package", "--out", str(file))
    return file


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output of the same replay without Spark, in a single batch."""
    out = tmp_path_factory.mktemp("local") / "out"
    assert replay.main.status(["--trace", str(SAMPLE), "--out", str(out)], open_local) == 0
    return out


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone(tmp_path) as running:
        yield running


@pytest.mark.nightly
def test_cluster_that_loses_worker_equals_local_replay(
    cluster: Cluster, archive: Path, local: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    cluster_options = ("--master", cluster.master, "--archives", str(archive), *SMALL_JOB)
    command = start(*cluster_options, "replay", *REPLAY, "--out", str(out))
    while not list(out.glob("_replay/**/commits/0")):
        try:
            command.wait(0.1)
            raise AssertionError(f"the command ended before the first batch:\n{wait_for_success(command)}")
        except subprocess.TimeoutExpired:
            pass
    cluster.lose(0)
    wait_for_success(command)
    for table in TABLES:
        assert rows(out, table) == rows(local, table), table
    assert rows(out, "completions")
    stores = [store.name for store in out.glob("_replay/checkpoints/partitions/state/0/*") if store.name.isdigit()]
    assert len(stores) == shuffle_partitions(2), "the default for two cores"
    assert audit.main.status(["--out", str(out)], open_local) == 0


def test_archive_of_other_sources_is_refused(tmp_path: Path) -> None:
    """Otherwise workers would run another version than the driver."""
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
    output, _ = process.communicate()
    assert (process.returncode, output) == (
        2,
        f"spark-submit.sh: {archive}: was created from other sources; create it again with ./spark-submit.sh package\n",
    )


@pytest.mark.nightly
def test_cluster_deploy_mode_is_refused(archive: Path) -> None:
    words = ["--master", "spark://nowhere:7077", "--deploy-mode", "cluster", "--archives", str(archive)]
    process = start(*words, "replay", "--events", "/events", "--out", "/out")
    output, _ = process.communicate()
    assert (process.returncode, output) == (
        2,
        "spark-submit.sh: --deploy-mode cluster: a standalone master cannot run a Python driver; use client mode with "
        "spark://, on a machine that the workers can reach\n",
    )
