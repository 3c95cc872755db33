"""The process that is forked to load the modules of Spark's Python workers, and continues as Spark's daemon."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from purgatory_udf.backend import spark_workers

_NUMBER = struct.Struct(">i")


@contextmanager
def _daemon(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a daemon as Spark's JVM does."""
    environ = {**os.environ, spark_workers.SOCKET_VARIABLE: str(path)}
    command = [sys.executable, "-m", spark_workers.__name__, "pyspark.worker"]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=nothing) as process:
        try:
            yield process
        finally:
            process.kill()


def _forked_worker(daemon: subprocess.Popen[bytes]) -> tuple[socket.socket, int]:
    """Connect to the daemon as Spark does; return the connection and the id of the forked worker."""
    assert daemon.stdout is not None
    (port,) = _NUMBER.unpack(daemon.stdout.read(4))
    connection = socket.create_connection(("127.0.0.1", port))
    (worker,) = _NUMBER.unpack(connection.recv(4, socket.MSG_WAITALL))
    return connection, worker


def _parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


# A job with an open file: it forks the process, prints its id, and stops it as soon as its own stdin is closed.
_JOB = """
import signal, sys
from purgatory_udf.backend import spark_workers
signal.signal(signal.SIGTERM, lambda *_: print("the job's handler"))
file = open(sys.executable)
print("buffered")
preloaded = spark_workers.preload(sys.argv[1])
print(preloaded.id, flush=True)
sys.stdin.read()
preloaded.end(float(sys.argv[2]))
"""


@contextmanager
def _job(path: Path, timeout: float = 60) -> Iterator[int]:
    """Start a job that preloads workers; yield the id of the forked process."""
    command = [sys.executable, "-c", _JOB, str(path), str(timeout)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdin is not None and job.stdout is not None
        assert job.stdout.readline() == "buffered\n"
        process = int(job.stdout.readline())
        yield process
        job.stdin.close()
        assert job.wait(60) == 0
        # The forked process has no copy of what the job had printed.
        assert job.stdout.read() == ""
    assert not Path(f"/proc/{process}").exists()


def _wait_for_socket(path: Path, process: int) -> None:
    while not path.exists():
        assert Path(f"/proc/{process}").exists()


def test_preloaded_process_becomes_the_daemon_until_spark_stops(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    with _job(path) as preloaded:
        _wait_for_socket(path, preloaded)
        with _daemon(path) as daemon:
            connection, worker = _forked_worker(daemon)
            with connection:
                assert _parent_of(worker) == preloaded
                # Ctrl-C in the terminal reaches neither.
                assert os.getpgid(daemon.pid) == daemon.pid
                assert os.getpgid(preloaded) == preloaded
                assert b"pyarrow" not in Path(f"/proc/{daemon.pid}/maps").read_bytes()
                assert b"pyarrow" in Path(f"/proc/{preloaded}/maps").read_bytes()
                # Otherwise a pipe would stay open when the job closes it.
                assert sys.executable not in {os.readlink(link) for link in Path(f"/proc/{preloaded}/fd").iterdir()}
            # Spark stops its daemon so.
            assert daemon.stdin is not None
            daemon.stdin.close()
            assert daemon.wait(30) == 0


def test_daemon_without_preloaded_process_forks_workers_itself(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    # The socket's file is still there, but no process listens.
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    with _daemon(path) as daemon:
        connection, worker = _forked_worker(daemon)
        with connection:
            assert _parent_of(worker) == daemon.pid


def test_preloaded_process_stops_with_the_job(tmp_path: Path) -> None:
    with _job(tmp_path / "workers"):
        pass


def test_preloaded_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with _job(tmp_path / "workers", timeout=0) as preloaded:
        os.kill(preloaded, signal.SIGSTOP)


def test_nothing_is_preloaded_beside_threads(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(spark_workers.preload, str(tmp_path / "workers")).result() is None
