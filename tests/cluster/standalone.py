"""A real Spark cluster on loopback: a master and its workers, each a process of its own, from the installed pyspark.

A worker has Java, a bare Python of the same version, and nothing of ours: no virtual environment, no path, no home.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from purgatory_udf.launch import runtimes
from tests.support import small_spark

_SPARK = Path(pyspark.__file__).parent
_MEMORY_MB = 1024
# A master and a worker have little to do.
_SOON_UP = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# What suits so small a cluster and so short a job. Over how many tasks a replay is spread is its own to find out.
_SPREAD = "spark.sql.shuffle.partitions"
SOON_OVER = (
    *(word for key, value in small_spark.SETTINGS.items() if key != _SPREAD for word in ("--conf", f"{key}={value}")),
    *("--conf", f"spark.executor.extraJavaOptions={small_spark.SETTINGS['spark.driver.extraJavaOptions']}"),
    *("--conf", "spark.driver.host=127.0.0.1"),
    *("--conf", "spark.driver.bindAddress=127.0.0.1"),
    *("--conf", "spark.executor.memory=768m"),
)


@dataclass(frozen=True)
class Cluster:
    master: str
    workers: list[subprocess.Popen[str]]

    def lose(self, worker: int) -> None:
        """The worker, its executor and their Python processes, at once: as when a machine is lost."""
        os.killpg(self.workers[worker].pid, signal.SIGKILL)
        self.workers[worker].wait()


@contextmanager
def standalone(folder: Path, workers: int = 2, memory_mb: int = _MEMORY_MB) -> Iterator[Cluster]:
    """The cluster is ready when it is given, and gone afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    at = ("--host", "127.0.0.1", "--webui-port", "0")
    started: list[subprocess.Popen[str]] = []
    try:
        master = _start("org.apache.spark.deploy.master.Master", *at, "--port", str(port), folder=folder)
        started.append(master)
        _await(master, "I have been elected leader")
        for number in range(workers):
            place = folder / f"worker-{number}"
            sized = ("-c", "1", "-m", f"{memory_mb}m", "-d", str(place))
            worker = _start("org.apache.spark.deploy.worker.Worker", *at, *sized, url, folder=folder)
            started.append(worker)
            _await(worker, "Successfully registered with master")
        for process in started:
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
        yield Cluster(url, started[1:])
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _start(which: str, *words: str, folder: Path) -> subprocess.Popen[str]:
    runtime = runtimes.find_java()
    assert runtime is not None
    bare_python = Path(sys.base_prefix, "bin")
    environ = {
        "PATH": f"{bare_python}:/usr/bin:/bin",
        "JAVA_HOME": str(runtimes.wrapper_java_home(runtime)),
        "HOME": str(folder / "nobody"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _SOON_UP,
        "SPARK_LAUNCHER_OPTS": _SOON_UP,
    }
    return subprocess.Popen(
        [str(_SPARK / "bin" / "spark-class"), which, *words],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _await(process: subprocess.Popen[str], said: str) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if said in line:
            return
    raise AssertionError(f"it ended before it said: {said}\n{''.join(lines)}")


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for _ in process.stderr:
        pass
