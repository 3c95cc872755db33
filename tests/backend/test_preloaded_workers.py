"""The process that imports the modules of Spark's Python workers ahead, and continues as Spark's daemon."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
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


def _wait_for_socket(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None


def test_preloaded_process_becomes_the_daemon_and_ends_with_spark(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    preloaded = spark_workers.preload(str(path))
    _wait_for_socket(path, preloaded)
    with _daemon(path) as daemon:
        connection, worker = _forked_worker(daemon)
        with connection:
            assert _parent_of(worker) == preloaded.pid
            # Ctrl-C in the terminal reaches neither.
            assert os.getpgid(daemon.pid) == daemon.pid
            assert os.getpgid(preloaded.pid) == preloaded.pid
            assert b"pyarrow" not in Path(f"/proc/{daemon.pid}/maps").read_bytes()
            assert b"pyarrow" in Path(f"/proc/{preloaded.pid}/maps").read_bytes()
        # Spark ends its daemon so.
        assert daemon.stdin is not None
        daemon.stdin.close()
        assert daemon.wait(30) == 0
        preloaded.wait(30)
    assert preloaded.stdin is not None
    preloaded.stdin.close()


def test_daemon_without_preloaded_process_forks_workers_itself(tmp_path: Path) -> None:
    path = tmp_path / "workers"
    # The socket's file is still there, but no process listens.
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    with _daemon(path) as daemon:
        connection, worker = _forked_worker(daemon)
        with connection:
            assert _parent_of(worker) == daemon.pid


def test_preloaded_process_ends_when_its_stdin_is_closed(tmp_path: Path) -> None:
    preloaded = spark_workers.preload(str(tmp_path / "workers"))
    preloaded.communicate(timeout=60)
    assert preloaded.returncode == 0
