"""A real Spark cluster on the loopback interface: a master and workers as separate processes of the installed pyspark.

A worker has Java and a bare Python of the same version, but no virtual environment, Python path or home directory.
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
# JVM options for a fast start; master and workers have little to do.
_FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Options for a short job on a small cluster. The replay chooses its number of tasks itself.
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
SMALL_JOB = (
    *(
        word
        for key, value in small_spark.SETTINGS.items()
        if key != _SHUFFLE_PARTITIONS
        for word in ("--conf", f"{key}={value}")
    ),
    *("--conf", f"spark.executor.extraJavaOptions={small_spark.SETTINGS['spark.driver.extraJavaOptions']}"),
    *("--conf", "spark.driver.host=127.0.0.1"),
    *("--conf", "spark.driver.bindAddress=127.0.0.1"),
    *("--conf", "spark.executor.memory=768m"),
)


@dataclass(frozen=True)
class Cluster:
    """Address of the master, and the processes of the workers."""

    master: str
    workers: list[subprocess.Popen[str]]

    def lose(self, worker: int) -> None:
        """Kill a worker with its executor and Python processes, as if its machine were lost."""
        os.killpg(self.workers[worker].pid, signal.SIGKILL)
        self.workers[worker].wait()


@contextmanager
def standalone(folder: Path, workers: int = 2, memory_mb: int = _MEMORY_MB) -> Iterator[Cluster]:
    """Start a cluster, yield it when it is ready, and stop it at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    address = ("--host", "127.0.0.1", "--webui-port", "0")
    started: list[subprocess.Popen[str]] = []
    try:
        master = _start("org.apache.spark.deploy.master.Master", *address, "--port", str(port), folder=folder)
        started.append(master)
        _await(master, "I have been elected leader")
        for number in range(workers):
            place = folder / f"worker-{number}"
            resources = ("-c", "1", "-m", f"{memory_mb}m", "-d", str(place))
            worker = _start("org.apache.spark.deploy.worker.Worker", *address, *resources, url, folder=folder)
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


def _start(main_class: str, *words: str, folder: Path) -> subprocess.Popen[str]:
    runtime = runtimes.find_java()
    assert runtime is not None
    bare_python = Path(sys.base_prefix, "bin")
    environ = {
        "PATH": f"{bare_python}:/usr/bin:/bin",
        "JAVA_HOME": str(runtimes.wrapper_java_home(runtime)),
        "HOME": str(folder / "no-home"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _FAST_START,
        "SPARK_LAUNCHER_OPTS": _FAST_START,
    }
    return subprocess.Popen(
        [str(_SPARK / "bin" / "spark-class"), main_class, *words],
        env=environ,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _await(process: subprocess.Popen[str], expected: str) -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if expected in line:
            return
    raise AssertionError(f"the process ended before the line: {expected}\n{''.join(lines)}")


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for _ in process.stderr:
        pass
